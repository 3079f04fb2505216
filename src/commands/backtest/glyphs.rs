//! The shapes of characters, for texts in pixels.

use std::collections::HashMap;
use std::sync::LazyLock;

const OUTLINES: &str = include_str!("assets/vendor/roboto.txt");
/// The units of an em.
const EM: f64 = 2048.0;
/// The lines that a curve becomes.
const LINES: usize = 6;

/// The character that others are shown as that have no shape.
const UNKNOWN: char = '?';

struct Glyph {
    advance: f64,
    path: &'static str,
}

static GLYPHS: LazyLock<HashMap<char, Glyph>> = LazyLock::new(|| {
    let glyph = |line: &'static str| {
        let mut parts = line.splitn(3, ' ');
        let character = u32::from_str_radix(parts.next()?, 16).ok().and_then(char::from_u32)?;
        let advance = parts.next()?.parse::<f64>().ok()?;
        Some((character, Glyph { advance, path: parts.next().unwrap_or_default() }))
    };
    OUTLINES.lines().filter_map(glyph).collect()
});

fn glyph(character: char) -> Option<&'static Glyph> {
    GLYPHS.get(&character).or_else(|| GLYPHS.get(&UNKNOWN))
}

/// The width of a text of a size in pixels.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().filter_map(glyph).map(|glyph| glyph.advance).sum::<f64>() * size / EM
}

/// Calls with each line of the outlines of a text whose baseline begins at a place: its two ends.
pub fn outline(
    text: &str,
    [mut left, top]: [f64; 2],
    size: f64,
    mut line: impl FnMut([f64; 2], [f64; 2]),
) {
    let scale = size / EM;
    for glyph in text.chars().filter_map(glyph) {
        let place = |x: f64, y: f64| [left + x * scale, top - y * scale];
        let (mut start, mut last) = (place(0.0, 0.0), place(0.0, 0.0));
        for command in commands(glyph.path) {
            match command {
                ('M', [x, y, ..]) => (start, last) = (place(x, y), place(x, y)),
                ('L', [x, y, ..]) => {
                    line(last, place(x, y));
                    last = place(x, y);
                }
                ('Q', [x1, y1, x2, y2]) => {
                    let (from, control, to) = (last, place(x1, y1), place(x2, y2));
                    for step in 1..=LINES {
                        let part = step as f64 / LINES as f64;
                        let at = |axis: usize| {
                            let (a, b) = (1.0 - part, part);
                            a * a * from[axis] + 2.0 * a * b * control[axis] + b * b * to[axis]
                        };
                        line(last, [at(0), at(1)]);
                        last = [at(0), at(1)];
                    }
                }
                _ => {
                    line(last, start);
                    last = start;
                }
            }
        }
        left += glyph.advance * scale;
    }
}

/// The commands of a path with their numbers: `M`, `L`, `Q` or `Z`.
fn commands(path: &str) -> impl Iterator<Item = (char, [f64; 4])> + '_ {
    let is_command = |character: char| character.is_ascii_uppercase();
    let starts: Vec<usize> = path.match_indices(is_command).map(|(start, _)| start).collect();
    let ends: Vec<usize> = starts.iter().skip(1).copied().chain([path.len()]).collect();
    starts.into_iter().zip(ends).map(|(start, end)| {
        let mut numbers = [0.0; 4];
        for (number, text) in numbers.iter_mut().zip(path[start + 1..end].split(' ')) {
            *number = text.parse().unwrap_or_default();
        }
        (path[start..].chars().next().unwrap_or('Z'), numbers)
    })
}
