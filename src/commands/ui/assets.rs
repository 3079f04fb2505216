//! The files of the page, which are in the binary: it needs nothing from elsewhere.

/// A file of the page.
pub struct Asset {
    /// Its path.
    pub path: &'static str,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// Its content.
    pub text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TXT: &str = "text/plain; charset=utf-8";

macro_rules! assets {
    ($($content_type:ident $file:literal),* $(,)?) => {
        &[$(Asset {
            path: concat!("/", $file),
            content_type: $content_type,
            text: include_str!(concat!("assets/", $file)),
        }),*]
    };
}

/// All files.
const ASSETS: &[Asset] = assets![
    HTML "index.html",
    CSS "style.css",
    SVG "icon.svg",
    JS "app.js",
    JS "change.js",
    JS "chart.js",
    JS "list.js",
    JS "one.js",
    JS "story.js",
    JS "stream.js",
    JS "text.js",
    JS "vendor/uPlot.iife.min.js",
    CSS "vendor/uPlot.min.css",
    TXT "vendor/uPlot.LICENSE",
];

/// The file at a path of the page.
pub fn at(path: &str) -> Option<&'static Asset> {
    let path = if path == "/" { "/index.html" } else { path };
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_it_has() {
        let names_files = |asset: &&Asset| {
            [HTML, JS].contains(&asset.content_type) && !asset.path.starts_with("/vendor")
        };
        for asset in ASSETS.iter().filter(names_files) {
            let is_path = |text: &&str| {
                !text.starts_with("//") && (text.starts_with('/') || text.starts_with("./"))
            };
            for quoted in asset.text.split('"').filter(is_path) {
                let path = quoted.trim_start_matches('.');
                let is_data = path.starts_with(super::super::access::DATA);
                assert!(is_data || path == "/" || at(path).is_some(), "{}: {quoted}", asset.path);
            }
        }
        assert!(at("/").is_some() && at("/../Cargo.toml").is_none());
    }

    #[test]
    fn texts_of_the_cluster_never_become_markup() {
        let ours = ASSETS.iter().filter(|asset| !asset.path.starts_with("/vendor"));
        for asset in ours {
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "https://",
                " style=",
                "onclick=",
            ] {
                assert!(!asset.text.contains(way), "{}: {way}", asset.path);
            }
            let is_svg = asset.content_type == SVG;
            assert!(is_svg || !asset.text.contains("http://"), "{}", asset.path);
        }
    }
}
