//! A picture as marks, which is written as SVG or in pixels.

/// What a mark is for: its color follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Page,
    Text,
    Muted,
    Grid,
    Load,
    Needed,
    Wanted,
    Was,
    Short,
    Low,
    /// The ready pods of a candidate.
    Ready(usize),
}

/// The number of colors of candidates.
const COLORS: usize = 8;

impl Ink {
    /// All.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = [
            Self::Page,
            Self::Text,
            Self::Muted,
            Self::Grid,
            Self::Load,
            Self::Needed,
            Self::Wanted,
            Self::Was,
            Self::Short,
            Self::Low,
        ];
        others.into_iter().chain((0..COLORS).map(Self::Ready))
    }

    /// Its name as a class.
    pub fn class(self) -> String {
        match self {
            Self::Ready(of) => format!("ready{}", of % COLORS),
            other => format!("{other:?}").to_lowercase(),
        }
    }

    /// Its color on a light and on a dark background, as RRGGBB: texts have a contrast of 4.5 to the page, lines of 3.
    pub fn colors(self) -> [&'static str; 2] {
        const READY: [[&str; 2]; COLORS] = [
            ["0b57d0", "8ab4f8"],
            ["8a4b00", "ffb74d"],
            ["7b1fa2", "d6a4ff"],
            ["1e6b34", "81c995"],
            ["00626b", "4dd0d8"],
            ["9c2c77", "ff9ecb"],
            ["5b5b00", "d4d46a"],
            ["535b65", "c3cad1"],
        ];
        match self {
            Self::Page => ["ffffff", "14171a"],
            Self::Text => ["1a1d21", "e8eaed"],
            Self::Muted => ["535b65", "aab2bb"],
            Self::Grid => ["e3e7eb", "2c3238"],
            Self::Load => ["b9c2cc", "4b555f"],
            Self::Needed => ["d5dbe1", "3a424a"],
            Self::Wanted => ["6b7480", "8f99a4"],
            Self::Was => ["1a1d21", "e8eaed"],
            Self::Short => ["d93025", "ff6f61"],
            Self::Low => ["fbe3c4", "4a3716"],
            Self::Ready(of) => READY[of % COLORS],
        }
    }
}

/// Which end of a text is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// A part of a picture. Lengths are in pixels, from the left and from the top.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// Rectangles: left, top, width and height.
    Rects { ink: Ink, at: Vec<[f64; 4]> },
    /// The area between two lines of the same steps: the left, the upper and the lower end of each, and the right end
    /// of the last.
    Area { ink: Ink, steps: Vec<[f64; 3]>, end: f64 },
    /// A line in steps: the left end and the height of each, and the right end of the last.
    Steps { ink: Ink, steps: Vec<[f64; 2]>, end: f64, width: f64 },
    /// A text on one line; its baseline is at the place.
    Text { ink: Ink, at: [f64; 2], size: f64, anchor: Anchor, text: String },
}

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Its width.
    pub width: f64,
    /// Its height.
    pub height: f64,
    /// What it is about, for those who don't see it.
    pub title: String,
    /// What it shows in words.
    pub description: String,
    /// Its marks; later ones are above.
    pub marks: Vec<Mark>,
}
