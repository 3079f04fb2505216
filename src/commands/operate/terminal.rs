//! The terminal that a command writes to.

use super::super::story::Screen;
use std::ffi::OsString;
use std::io::IsTerminal;

/// The width where it is not known.
const WIDTH: usize = 80;

/// The screen of the standard output, by it and the environment.
pub fn screen() -> Screen {
    let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    screen_of(width, std::io::stdout().is_terminal(), |name| std::env::var_os(name))
}

/// The width of the terminal; none where the standard output is no terminal, where nothing is cut.
pub fn width() -> Option<usize> {
    let size = terminal_size::terminal_size().filter(|_| std::io::stdout().is_terminal());
    size.map(|(width, _)| usize::from(width.0))
}

/// A line that fits.
pub fn cut(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width => {
            line.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
        }
        _ => line.to_owned(),
    }
}

fn screen_of(
    width: Option<usize>,
    is_terminal: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Screen {
    let text = |name: &str| variable(name)?.into_string().ok().filter(|text| !text.is_empty());
    let columns = || text("COLUMNS")?.parse().ok();
    let charset = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(text).unwrap_or_default();
    let charset = charset.to_ascii_lowercase();
    let is_dumb = text("TERM").is_some_and(|term| term == "dumb");
    Screen {
        width: width.or_else(columns).unwrap_or(WIDTH),
        unicode: charset.contains("utf-8") || charset.contains("utf8"),
        color: is_terminal && !is_dumb && text("NO_COLOR").is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_to_the_width_of_a_terminal() {
        assert_eq!(cut("abcdef", Some(5)), "ab...");
        assert_eq!((&*cut("abcdef", Some(6)), &*cut("abcdef", None)), ("abcdef", "abcdef"));
    }

    #[test]
    fn a_screen_has_colors_and_unicode_only_where_it_shows_them() {
        let screen = |is_terminal, environment: &'static [(&'static str, &'static str)]| {
            screen_of(None, is_terminal, |name| {
                let found = environment.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let plain = Screen { width: 80, unicode: false, color: false };
        assert_eq!(screen(false, &[]), plain);
        assert_eq!(screen(true, &[("LANG", "C")]), Screen { color: true, ..plain });
        assert_eq!(screen(true, &[("NO_COLOR", "1"), ("LANG", "POSIX")]), plain);
        assert_eq!(screen(true, &[("TERM", "dumb")]), plain);
        let wide = Screen { width: 132, unicode: true, color: false };
        assert_eq!(screen(false, &[("COLUMNS", "132"), ("LANG", "de_DE.UTF-8")]), wide);
        // The first that is set counts.
        assert_eq!(screen(false, &[("LC_ALL", "C"), ("LANG", "en_US.utf8")]), plain);
        assert_eq!(screen_of(Some(100), false, |_| None).width, 100);
    }
}
