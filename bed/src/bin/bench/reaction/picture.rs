//! The chart of docs/reaction.md.

use super::cases::{Case, SIDES};
use super::parts::{Reaction, rows};
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
/// Where bars begin, and how wide a second is.
const LEFT: f64 = 300.0;
const SECOND: f64 = 4.6;
const BAR: f64 = 22.0;
const HEAD: &str = "\
<style>
.page{fill:#ffffff}.text{fill:#1a1d21}.muted{fill:#535b65}.grid{stroke:#e3e7eb;fill:none}
.scrape{fill:#0b57d0}.window{fill:#c77700}.period{fill:#1e6b34}.first{fill:#1a1d21}
@media (prefers-color-scheme:dark){
.page{fill:#1a1d21}.text{fill:#e8eaed}.muted{fill:#aab2bb}.grid{stroke:#3a4149}
.scrape{fill:#8ab4f8}.window{fill:#ffb74d}.period{fill:#81c995}.first{fill:#e8eaed}
}
</style>
";

/// One bar for what is to be expected of each case and for each side.
pub fn svg(reactions: &BTreeMap<(Case, &'static str), Reaction>) -> String {
    let count = rows(reactions).count();
    let groups = count / (SIDES.len() + 1);
    let bottom = 60.0 + count as f64 * BAR + groups as f64 * 14.0;
    let height = bottom + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-labelledby=\"title description\" \
         font-family=\"Roboto, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"13\">\n\
         <title id=\"title\">From a step in the load to the scale</title>\n\
         <desc id=\"description\">{}</desc>\n{HEAD}\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
        description(reactions)
    );
    let mut text = |class: &str, x: f64, y: f64, anchor: &str, words: &str| {
        let _ = writeln!(
            svg,
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>"
        );
    };
    for (x, words) in [
        (28.0, "until a scrape"),
        (158.0, "until the window is full enough"),
        (388.0, "until the next decision is written"),
        (636.0, "the first replicas are written"),
    ] {
        text("text", x + 16.0, 30.0, "start", words);
    }
    for seconds in (0..=120).step_by(20) {
        text(
            "muted",
            LEFT + f64::from(seconds) * SECOND,
            bottom + 18.0,
            "middle",
            &format!("{seconds} s"),
        );
    }
    let mut marks = String::new();
    for (x, class) in [(28.0, "scrape"), (158.0, "window"), (388.0, "period")] {
        let _ = writeln!(
            marks,
            "<rect class=\"{class}\" x=\"{x}\" y=\"20\" width=\"11\" height=\"11\"/>"
        );
    }
    let _ = writeln!(marks, "<path class=\"first\" d=\"M641 20l5 6l-5 6l-5-6z\"/>");
    for seconds in (0..=120).step_by(20) {
        let x = LEFT + f64::from(seconds) * SECOND;
        let _ = writeln!(marks, "<path class=\"grid\" d=\"M{x:.1} 48V{bottom:.1}\"/>");
    }
    let mut top = 48.0;
    let mut before = None;
    for (case, of, Reaction { mean, .. }) in rows(reactions) {
        if before != Some(case) {
            top += 14.0;
            let Case { scrape, window } = case;
            text("text", 12.0, top + 15.0, "start", &format!("every {scrape} s, over {window} s"));
            before = Some(case);
        }
        text("muted", LEFT - 8.0, top + 15.0, "end", of);
        let mut x = LEFT;
        for (class, seconds) in [
            ("scrape", mean.scrape),
            ("window", mean.window),
            ("period", mean.period + mean.decision),
        ] {
            let width = seconds * SECOND;
            let _ = writeln!(
                marks,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\"/>",
                top + 3.0,
                BAR - 6.0
            );
            x += width;
        }
        text("text", x + 6.0, top + 15.0, "start", &format!("{:.0} s", mean.all()));
        let (first, middle) = (LEFT + mean.first * SECOND, top + BAR / 2.0);
        let _ = writeln!(
            marks,
            "<path class=\"first\" d=\"M{first:.1} {:.1}l5 6l-5 6l-5-6z\"/>",
            middle - 6.0
        );
        top += BAR;
    }
    svg + &marks + "</svg>\n"
}

fn description(reactions: &BTreeMap<(Case, &'static str), Reaction>) -> String {
    let sentence = |(Case { scrape, window }, of, Reaction { mean, .. }): (
        Case,
        &str,
        Reaction,
    )| {
        format!(
            "Scrapes every {scrape} s, a window of {window} s, {of}: first replicas after {:.0} s, all after {:.0} s.",
            mean.first,
            mean.all()
        )
    };
    rows(reactions).map(sentence).collect::<Vec<_>>().join(" ")
}
