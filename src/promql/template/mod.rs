//! Go's template language (`text/template`) with the delimiters `<<` and `>>`, as far as the configurations of
//! prometheus-adapter use it: fields, variables, pipelines, `if`, `range`, `with`, and functions.

mod ast;
mod faults;
mod functions;
mod parse;
mod pipeline;
mod render;
mod split;
mod value;

pub use value::Value;

use ast::{Node, Position};
use std::collections::BTreeMap;

/// A parsed template.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    body: Vec<Node>,
    /// The bytes of all that it writes, and of each value that it works with.
    limit: usize,
}

/// The limit of a template, unless it has another, in bytes.
pub const LIMIT: usize = 64 << 20;

/// An error in a template, and its position.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("template line {line}, column {column}: {message}")]
pub struct TemplateError {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
    /// The error, and the remedy.
    pub message: String,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// If it is not a template, or uses what is not supported.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let body = parse::parse(text).map_err(|(at, message)| located(text, at, message))?;
        Ok(Self { body, limit: LIMIT })
    }

    /// The same template, which fails beyond so many bytes of what it writes and of the values that it works with:
    /// loops in loops, and texts that double, would otherwise take any time and memory.
    pub fn within(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Whether it uses a field of the dot.
    pub fn uses(&self, field: &str) -> bool {
        self.body.iter().any(|node| node.uses(field))
    }

    /// The first field in it that is not there, in branches that are not rendered for these fields of the dot, too, and
    /// what is wrong with it.
    pub fn unknown_field(&self, fields: &BTreeMap<&'static str, Value>) -> Option<String> {
        faults::first(&self.body, fields)
    }

    /// Renders the template for these fields of the dot.
    ///
    /// # Errors
    /// If it uses an unknown field, an operation fails, or it exceeds its limit.
    pub fn render(&self, fields: &BTreeMap<&'static str, Value>) -> Result<String, String> {
        render::render(&self.body, fields, self.limit)
    }
}

fn located(text: &str, at: Position, message: String) -> TemplateError {
    let before = &text[..at.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    TemplateError { line, column, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> BTreeMap<&'static str, Value> {
        let names = BTreeMap::from([
            ("namespace".to_owned(), "shop".to_owned()),
            ("pod".to_owned(), "a|b".to_owned()),
        ]);
        BTreeMap::from([
            ("Series", Value::Text("hits_total".to_owned())),
            ("LabelMatchers", Value::Text(r#"namespace="shop",pod=~"a|b""#.to_owned())),
            ("LabelValuesByName", Value::Map(names)),
            ("GroupBy", Value::Text("pod,container".to_owned())),
            ("GroupBySlice", Value::List(vec!["pod".to_owned(), "container".to_owned()])),
        ])
    }

    #[test]
    fn templates_are_filled_in_as_go_does() {
        for (template, expected) in [
            ("sum(<<.Series>>) by (<<.GroupBy>>)", "sum(hits_total) by (pod,container)"),
            ("<< .Series >>-<<- /* gone */ ->> x", "hits_total-x"),
            ("a <<- .Series ->> b", "ahits_totalb"),
            ("a\n<<-\t.Series\n->>\n b", "ahits_totalb"),
            ("<<index .LabelValuesByName \"pod\">>/<<index .GroupBySlice 1>>", "a|b/container"),
            ("<<.LabelValuesByName.namespace>><<.LabelValuesByName.none>>", "shop<no value>"),
            ("<<index .LabelValuesByName \"none\">>", ""),
            (
                "<<range $k, $v := .LabelValuesByName>><<$k>>=<<$v>>;<<end>>",
                "namespace=shop;pod=a|b;",
            ),
            ("<<range .GroupBySlice>>[<<.>>]<<else>>none<<end>>", "[pod][container]"),
            ("<<range $i, $l := .GroupBySlice>><<if $i>>,<<end>><<$l>><<end>>", "pod,container"),
            ("<<if eq .Series \"a\">>1<<else if eq .Series \"hits_total\">>2<<else>>3<<end>>", "2"),
            ("<<with $x := .Series>><<$x>><<.>><<end>>", "hits_totalhits_total"),
            ("<<printf \"%s-%05d-%q\" .Series 42 \"a\\\"b\">>", "hits_total-00042-\"a\\\"b\""),
            ("<<.Series | printf \"%-12s|\">>", "hits_total  |"),
            ("<<if and .Series (not (eq .GroupBy \"x\"))>>y<<end>>", "y"),
            (
                "<<len .GroupBySlice>> <<.GroupBySlice>> <<.GroupBySlice | join \"+\">>",
                "2 [pod container] pod+container",
            ),
            (
                "<<$s := .Series>><<range .GroupBySlice>><<$s>>.<<.>> <<$.Series>> <<end>>",
                "hits_total.pod hits_total hits_total.container hits_total ",
            ),
            ("<<$n := 0>><<range .GroupBySlice>><<$n = 7>><<end>><<$n>>", "7"),
            ("<<range $i, $l := .GroupBySlice>><<if eq $i 1>><<break>><<end>><<$l>><<end>>", "pod"),
            (
                "<<range $i, $l := .GroupBySlice>><<if eq $i 0>><<continue>><<end>><<$l>><<end>>",
                "container",
            ),
            ("<<slice .Series 0 4>> <<`raw >> \"x\"`>>", "hits raw >> \"x\""),
            // As in Go since 1.18, the arguments after the one that decides are not evaluated.
            ("<<if and (gt (len .GroupBySlice) 2) (index .GroupBySlice 2)>>a<<else>>b<<end>>", "b"),
            ("<<if or .Series (index .GroupBySlice 2)>>a<<else>>b<<end>>", "a"),
            ("<<or false (index .GroupBySlice 1) (index .GroupBySlice 2)>>", "container"),
            ("<<.Series | and true>><<.Series | or \"x\">>", "hits_totalx"),
            // Go trims space, tab, carriage return and newline, and no other space.
            ("a<<.Series ->>\u{a0}\u{2003} b", "ahits_total\u{a0}\u{2003} b"),
            ("a<<.Series ->> \t\r\n\u{b}b", "ahits_total\u{b}b"),
            (
                "<<$i := 9>><<$l := 9>><<range $i, $l = .GroupBySlice>><<end>><<$i>><<$l>>",
                "1container",
            ),
            ("<<$l := 9>><<range $l = .GroupBySlice>><<end>><<$l>>", "container"),
            ("<<$x := 1>><<if $x = 2>><<end>><<with $x = 3>><<end>><<$x>>", "3"),
        ] {
            let rendered = Template::parse(template).unwrap().render(&fields()).unwrap();
            assert_eq!(rendered, expected, "{template}");
        }
    }

    #[test]
    fn no_template_takes_more_than_its_limit() {
        let doubled =
            "<<$x := .Series>>".to_owned() + &"<<$x = printf \"%s%s\" $x $x>>".repeat(200);
        let loops = "<<range $.GroupBySlice>>".repeat(40) + &"<<end>>".repeat(40);
        let wide = "<<printf \"%1000s\" 1>>".repeat(2_000);
        let join = "<<$x := printf \"%1000s\" 1>>".to_owned()
            + &"<<$x = .GroupBySlice | join $x>>".repeat(300);
        for template in [doubled, loops, wide, join] {
            let error = Template::parse(&template).unwrap().within(1 << 20).render(&fields());
            assert!(error.unwrap_err().contains("1048576 bytes"), "{template:.60}");
        }
        let deep = ["<<if 1>>".repeat(9_000), format!("<<{}1", "(".repeat(9_000)) + ">>"];
        for template in deep {
            let error = Template::parse(&template).unwrap_err();
            assert!(error.message.contains("in each other"), "{error}");
        }
        for format in ["%9999999999999s", "%.9999999999999f", "%\u{e9}"] {
            let template = Template::parse(&format!("<<printf \"{format}\" 1>>")).unwrap();
            assert!(template.render(&fields()).is_err(), "{format}");
        }
    }

    #[test]
    fn a_wrong_template_says_where_and_what() {
        for (template, line, column, message) in [
            ("sum(<<.Series", 1, 5, "has no >>"),
            ("a\n  <<if .Series>>x", 2, 5, "no <<end>>"),
            ("<<end>>", 1, 3, "unexpected <<end>>"),
            ("<<toUpper .Series>>", 1, 3, "function \"toUpper\" is not known; and, or"),
            ("<<.Series \"x\">>", 1, 14, "takes no arguments"),
            ("<<template \"x\">>", 1, 3, "not supported"),
            ("<<\"x>>", 1, 1, "has no >>"),
            ("<<>>", 1, 3, "a value was expected"),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{template}: {error}");
            assert!(error.message.contains(message), "{template}: {error}");
        }
        for (template, message) in [
            ("<<.Nothing>>", ".Nothing is not known; .GroupBy"),
            ("<<.Series.X>>", "can't evaluate field X"),
            ("<<index .GroupBySlice 9>>", "out of range"),
            ("<<$x>>", "undefined variable $x"),
            ("<<range $i, $l = .GroupBySlice>><<end>>", "undefined variable $i"),
            ("<<and true (index .GroupBySlice 9)>>", "out of range"),
            ("<<range .Series>><<end>>", "can't iterate"),
        ] {
            let error = Template::parse(template).unwrap().render(&fields()).unwrap_err();
            assert!(error.contains(message), "{template}: {error}");
        }
    }
}
