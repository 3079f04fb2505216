//! The name that was probably meant.

/// The name that is most like another one, if one is like it.
pub fn nearest(name: &str, names: impl Iterator<Item = String>) -> Option<String> {
    let alike = names.map(|known| (strsim::jaro_winkler(name, &known), known));
    let nearest = alike.filter(|(alike, _)| *alike > 0.85).max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_typing_error_is_found_and_another_is_not() {
        let of = |name| nearest(name, ["web", "checkout"].map(str::to_owned).into_iter());
        assert_eq!(of("chekout").as_deref(), Some("checkout"));
        assert_eq!(of("payments"), None);
    }
}
