//! A picture as SVG: texts are texts, and colors follow the reader's scheme. The background is its own, so that it is
//! legible on any page.

use super::html::escape;
use super::scene::{Anchor, Ink, Mark, Scene};
use std::fmt::Write;

/// The picture.
pub fn svg(scene: &Scene) -> String {
    let Scene { width, height, title, description, marks } = scene;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-labelledby=\"title description\" font-family=\"Roboto, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n\
         <title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n<style>\n",
        escape(title),
        escape(description)
    );
    let styles = |scheme: usize| {
        Ink::all().fold(String::new(), |styles, ink| {
            let (class, color) = (ink.class(), ink.colors()[scheme]);
            styles
                + &format!(".{class}{{fill:#{color}}}.{class}-line{{stroke:#{color};fill:none}}\n")
        })
    };
    let _ = writeln!(
        text,
        "{}@media (prefers-color-scheme:dark){{\n{}}}\n</style>",
        styles(0),
        styles(1)
    );
    for mark in marks {
        let _ = match mark {
            Mark::Rects { ink, at } => {
                let path = at.iter().fold(String::new(), |path, [left, top, width, height]| {
                    let [left, top, width, height] =
                        [left, top, width, height].map(|it| number(*it));
                    path + &format!("M{left} {top}h{width}v{height}h-{width}z")
                });
                writeln!(text, "<path class=\"{}\" d=\"{path}\"/>", ink.class())
            }
            Mark::Area { ink, steps, end } => {
                writeln!(text, "<path class=\"{}\" d=\"{}\"/>", ink.class(), area(steps, *end))
            }
            Mark::Steps { ink, steps, end, width } => writeln!(
                text,
                "<path class=\"{}-line\" stroke-width=\"{width}\" d=\"{}\"/>",
                ink.class(),
                line(steps, *end)
            ),
            Mark::Text { ink, at: [left, top], size, anchor, text: words } => {
                let anchor = match anchor {
                    Anchor::Start => "",
                    Anchor::Middle => " text-anchor=\"middle\"",
                    Anchor::End => " text-anchor=\"end\"",
                };
                writeln!(
                    text,
                    "<text class=\"{}\" x=\"{}\" y=\"{}\" font-size=\"{size}\"{anchor}>{}</text>",
                    ink.class(),
                    number(*left),
                    number(*top),
                    escape(words)
                )
            }
        };
    }
    text + "</svg>\n"
}

/// A length with one digit after the point.
fn number(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

fn line(steps: &[[f64; 2]], end: f64) -> String {
    let mut path = String::new();
    let mut last = String::new();
    for [left, top] in steps {
        let top = number(*top);
        if path.is_empty() {
            let _ = write!(path, "M{} {top}", number(*left));
        } else if top != last {
            let _ = write!(path, "H{}V{top}", number(*left));
        }
        last = top;
    }
    let _ = write!(path, "H{}", number(end));
    path
}

/// Forth along the upper ends, and back along the lower ones.
fn area(steps: &[[f64; 3]], end: f64) -> String {
    let Some([left, ..]) = steps.first() else { return String::new() };
    let upper: Vec<[f64; 2]> = steps.iter().map(|[left, upper, _]| [*left, *upper]).collect();
    let mut path = line(&upper, end);
    let mut last = String::new();
    for (index, [_, _, lower]) in steps.iter().enumerate().rev() {
        let lower = number(*lower);
        if lower != last {
            // The right end of a step is the left one of the next.
            let right = steps.get(index + 1).map_or(end, |[left, ..]| *left);
            let _ = write!(path, "H{}V{lower}", number(right));
        }
        last = lower;
    }
    let _ = write!(path, "H{}Z", number(*left));
    path
}
