//! A picture in pixels, as PNG.

use super::glyphs;
use super::scene::{Anchor, Ink, Mark, Scene};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::io::Write;

/// The pixels of a picture's pixel, for displays with many.
const SCALE: f64 = 2.0;

/// The picture, on the light background.
pub fn png(scene: &Scene) -> Vec<u8> {
    let mut canvas = Canvas::new(scene.width, scene.height);
    for mark in &scene.marks {
        canvas.draw(mark);
    }
    encode(canvas.width, &canvas.pixels)
}

/// Pixels, and how much of each the present mark covers.
struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
    /// What each pixel adds to the coverage of its row from there on; two more at the right edge of each row.
    cover: Vec<f32>,
    /// The rows that the present mark touches.
    touched: (usize, usize),
}

impl Canvas {
    fn new(width: f64, height: f64) -> Self {
        let [width, height] = [width, height].map(|length| (length * SCALE).ceil() as usize);
        let pixels = vec![color(Ink::Page); width * height];
        let cover = vec![0.0; (width + 2) * height];
        Self { width, height, pixels, cover, touched: (height, 0) }
    }

    fn draw(&mut self, mark: &Mark) {
        match mark {
            Mark::Rects { ink, at } => {
                for [left, top, width, height] in at {
                    self.rect([*left, *top], [left + width, top + height]);
                }
                self.fill(*ink);
            }
            Mark::Area { ink, steps, end } => {
                for (index, [left, upper, lower]) in steps.iter().enumerate() {
                    let right = steps.get(index + 1).map_or(*end, |[left, ..]| *left);
                    self.rect([*left, *upper], [right, *lower]);
                }
                self.fill(*ink);
            }
            Mark::Steps { ink, steps, end, width } => {
                let half = width / 2.0;
                let mut before: Option<f64> = None;
                for (index, [left, top]) in steps.iter().enumerate() {
                    let right = steps.get(index + 1).map_or(*end, |[left, ..]| *left);
                    self.rect([*left - half, top - half], [right + half, top + half]);
                    if let Some(before) = before.filter(|before| before != top) {
                        let (upper, lower) = (before.min(*top), before.max(*top));
                        self.rect([left - half, upper], [left + half, lower]);
                    }
                    before = Some(*top);
                }
                self.fill(*ink);
            }
            Mark::Text { ink, at: [left, top], size, anchor, text } => {
                let width = glyphs::width(text, *size);
                let left = match anchor {
                    Anchor::Start => *left,
                    Anchor::Middle => left - width / 2.0,
                    Anchor::End => left - width,
                };
                glyphs::outline(text, [left, *top], *size, |from, to| self.line(from, to));
                self.fill(*ink);
            }
        }
    }

    fn rect(&mut self, [left, top]: [f64; 2], [right, bottom]: [f64; 2]) {
        self.line([left, bottom], [left, top]);
        self.line([right, top], [right, bottom]);
    }

    /// Adds the area to the right of a line: downwards it is added, upwards taken away.
    fn line(&mut self, from: [f64; 2], to: [f64; 2]) {
        let most = [self.width as f64, self.height as f64];
        let [from, to] = [from, to].map(|at| [at[0] * SCALE, at[1] * SCALE]);
        let (direction, [x0, y0], [x1, y1]) = match from[1] <= to[1] {
            true => (1.0, from, to),
            false => (-1.0, to, from),
        };
        let (top, bottom) = (y0.max(0.0), y1.min(most[1]));
        if bottom <= top {
            return;
        }
        let slope = (x1 - x0) / (y1 - y0);
        let rows = top as usize..(bottom.ceil() as usize).min(self.height);
        self.touched = (self.touched.0.min(rows.start), self.touched.1.max(rows.end));
        for row in rows {
            let (upper, lower) = (top.max(row as f64), bottom.min(row as f64 + 1.0));
            let height = (lower - upper) * direction;
            let ends = [upper, lower].map(|y| (x0 + (y - y0) * slope).clamp(0.0, most[0]));
            let (first, last) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
            let (first_pixel, last_pixel) = (first as usize, last as usize);
            let parts = last_pixel - first_pixel + 1;
            for pixel in first_pixel..=last_pixel {
                // The part of the line that is in this pixel, and its mean place there.
                let (left, right) = (first.max(pixel as f64), last.min(pixel as f64 + 1.0));
                let share = if parts == 1 { 1.0 } else { (right - left) / (last - first) };
                let inside = 1.0 - ((left + right) / 2.0 - pixel as f64);
                let at = row * (self.width + 2) + pixel;
                self.cover[at] += (height * share * inside) as f32;
                self.cover[at + 1] += (height * share * (1.0 - inside)) as f32;
            }
        }
    }

    /// Colors what is covered, and forgets it.
    fn fill(&mut self, ink: Ink) {
        let color = color(ink).map(f32::from);
        let (first, last) = std::mem::replace(&mut self.touched, (self.height, 0));
        for row in first..last {
            let mut sum = 0.0;
            let pixels = &mut self.pixels[row * self.width..(row + 1) * self.width];
            let cover = &mut self.cover[row * (self.width + 2)..(row + 1) * (self.width + 2)];
            for (pixel, cover) in pixels.iter_mut().zip(cover.iter()) {
                sum += cover;
                let share: f32 = f32::min(f32::abs(sum), 1.0);
                if share > 0.004 {
                    for (old, new) in pixel.iter_mut().zip(color) {
                        *old = (f32::from(*old) * (1.0 - share) + new * share).round() as u8;
                    }
                }
            }
            cover.fill(0.0);
        }
    }
}

fn color(ink: Ink) -> [u8; 3] {
    let text = ink.colors()[0];
    [0, 2, 4].map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap_or_default())
}

/// RGB of eight bits each (PNG, third edition, 11.2).
fn encode(width: usize, pixels: &[[u8; 3]]) -> Vec<u8> {
    let height = pixels.len() / width;
    let mut rows = Vec::with_capacity(height * (width * 3 + 1));
    for (index, row) in pixels.chunks(width).enumerate() {
        // The filter Up: the difference to the row above (9.2).
        rows.push(2);
        let above = index.checked_sub(1).map(|above| &pixels[above * width..index * width]);
        for (at, pixel) in row.iter().enumerate() {
            let above = above.map_or([0; 3], |row| row[at]);
            rows.extend([0, 1, 2].map(|part| pixel[part].wrapping_sub(above[part])));
        }
    }
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
    zlib.write_all(&rows).expect("memory takes it");
    let data = zlib.finish().expect("memory takes it");
    let mut header = Vec::new();
    for length in [width, height] {
        header.extend((length as u32).to_be_bytes());
    }
    header.extend([8, 2, 0, 0, 0]);
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &*header), (b"IDAT", &*data), (b"IEND", &[])] {
        png.extend((data.len() as u32).to_be_bytes());
        let start = png.len();
        png.extend(kind);
        png.extend(data);
        let mut crc = Crc::new();
        crc.update(&png[start..]);
        png.extend(crc.sum().to_be_bytes());
    }
    png
}
