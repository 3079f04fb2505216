//! The report as a page: one file, which needs nothing from elsewhere and asks for nothing.

use super::page_data;
use super::report::Tried;
use super::text;
use crate::commands::story::plain;
use k8s_openapi::ByteString;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The most parts of low confidence that are listed.
const MAX_PARTS: usize = 100;

/// The page, with `{{NAME}}` where something is put in.
const PAGE: &str = include_str!("assets/report.html");
/// The styles: of `plimsoll ui` and of uPlot, and those of this page.
const STYLES: [&str; 3] = [
    include_str!("../ui/assets/vendor/uPlot.min.css"),
    include_str!("../ui/assets/style.css"),
    include_str!("assets/report.css"),
];
const UPLOT: &str = include_str!("../ui/assets/vendor/uPlot.iife.min.js");
const UPLOT_LICENSE: &str = include_str!("../ui/assets/vendor/uPlot.LICENSE");
/// The modules that tell of decisions, as `plimsoll ui` has them.
const MODULES: [&str; 2] =
    [include_str!("../ui/assets/text.js"), include_str!("../ui/assets/story.js")];
const SCRIPT: &str = include_str!("assets/report.js");

/// The page.
pub fn html(tried: &Tried) -> String {
    let [of_scripts, of_style] = sources();
    let policy = format!(
        "default-src 'none'; script-src {of_scripts}; style-src {of_style}; img-src data:; base-uri 'none'; form-action 'none'"
    );
    let scripts = scripts().map(|script| format!("<script>{script}</script>")).join("\n");
    let data = serde_json::to_string(&page_data::data(tried)).expect("numbers and texts are JSON");
    fill(PAGE, |name| match name {
        "policy" => policy.clone(),
        "title" => escape(&title(tried)),
        "style" => style(),
        "span" => escape(&text::span(tried)),
        "verdict" => {
            let mut lines = text::verdicts(&tried.runs);
            lines.extend(tried.judged.clone());
            items(&lines)
        }
        "reproduced" => reproduced(tried),
        "figures" => figures(tried),
        "terms" => escape(text::TERMS),
        "low_confidence" => low_confidence(tried),
        "assumptions" => {
            format!("<ul>\n{}</ul>", items(&[tried.assumptions(), tried.shown()].concat()))
        }
        // No text of it ends the element.
        "data" => data.replace('<', "\\u003c"),
        "scripts" => scripts.clone(),
        other => unreachable!("the page has {other}"),
    })
}

/// The sources of scripts and of styles of each report, as a Content-Security-Policy names them. A page that shows
/// reports in a frame allows these, too, where the frame inherits its policy.
pub fn sources() -> [String; 2] {
    [scripts().map(|script| hash(&script)).join(" "), hash(&style())]
}

fn style() -> String {
    STYLES.join("\n")
}

fn scripts() -> [String; 2] {
    [format!("/*\n{}\n*/\n{UPLOT}", UPLOT_LICENSE.trim()), script()]
}

fn title(tried: &Tried) -> String {
    let names: Vec<&str> = tried.runs.iter().map(|run| &*run.figures.name).collect();
    format!("Backtest of {}", names.join(", "))
}

/// Puts texts in where the template has `{{NAME}}`. What is put in is not looked at again.
fn fill(template: &str, value: impl Fn(&str) -> String) -> String {
    let mut parts = template.split("{{");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").expect("each name ends");
        text += &value(name);
        text += rest;
    }
    text
}

/// The modules in one script: what a page imports from another file, it can't from its own.
fn script() -> String {
    let module = |text: &str| -> String {
        let lines = text.lines().filter(|line| !line.starts_with("import "));
        let lines = lines.map(|line| line.strip_prefix("export ").unwrap_or(line));
        lines.fold(String::new(), |text, line| text + line + "\n")
    };
    let modules: String = MODULES.iter().map(|text| module(text)).collect();
    format!("(() => {{\n\"use strict\";\n{modules}{{\n{SCRIPT}}}\n}})();\n")
}

/// The hash of an inline script or style, as a Content-Security-Policy names it.
pub fn hash(text: &str) -> String {
    let hash = serde_json::to_value(ByteString(Sha256::digest(text).to_vec()));
    let base64 = hash.ok().and_then(|hash| hash.as_str().map(str::to_owned)).unwrap_or_default();
    format!("'sha256-{base64}'")
}

/// A text of others as text of HTML or XML, in attributes, too.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in plain(text).chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            // No character of XML.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

fn items(texts: &[String]) -> String {
    texts.iter().fold(String::new(), |items, text| items + "<li>" + &escape(text) + "</li>\n")
}

fn figures(tried: &Tried) -> String {
    let mut table = "<table id=\"figures\" aria-labelledby=\"figures-title\">\n".to_owned();
    let [header, rows @ ..] = &*text::rows(&tried.runs) else { return table };
    let head = header
        .iter()
        .fold(String::new(), |head, name| head + "<th scope=\"col\">" + name + "</th>");
    let _ = writeln!(table, "<thead><tr>{head}</tr></thead>\n<tbody>");
    for row in rows {
        let [name, figures @ ..] = &**row else { continue };
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", escape(name));
        for figure in figures {
            let _ = write!(table, "<td>{figure}</td>");
        }
        table += "</tr>\n";
    }
    table + "</tbody></table>"
}

/// What was, beside what would have been.
fn reproduced(tried: &Tried) -> String {
    let Some(recorded) = &tried.recorded else { return String::new() };
    let lines: Vec<String> =
        text::reproduced(recorded).lines().map(|line| line.trim().to_owned()).collect();
    format!("<h2>Reproduction</h2>\n<ul>\n{}</ul>", items(&lines))
}

fn low_confidence(tried: &Tried) -> String {
    let parts = &tried.low_confidence;
    if parts.is_empty() {
        return "<p>None found. A ceiling that noise hides, or that the load reaches for a few rows only, is not seen.</p>".to_owned();
    }
    let mut texts: Vec<String> = parts.iter().take(MAX_PARTS).map(text::part).collect();
    if parts.len() > MAX_PARTS {
        texts.push(format!("and {} more (--output json)", parts.len() - MAX_PARTS));
    }
    format!("<ul>\n{}</ul>", items(&texts))
}
