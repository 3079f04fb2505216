//! Parses the blocks of a template.

use super::ast::{Node, Position};
use super::pipeline::{MAX_DEPTH, PipelineParser};
use super::split::{Parsed, Piece, is_space, split};

/// The nodes of a template.
pub(super) fn parse(text: &str) -> Parsed<Vec<Node>> {
    let pieces = split(text)?;
    let mut parser = Parser { pieces: pieces.into_iter().peekable(), depth: 0 };
    let (body, end) = parser.block()?;
    match end {
        None => Ok(body),
        Some((word, at)) => Err((at, format!("unexpected <<{word}>>"))),
    }
}

struct Parser<'a> {
    pieces: std::iter::Peekable<std::vec::IntoIter<Piece<'a>>>,
    /// The blocks that are open.
    depth: usize,
}

/// The action that ended a block: `end`, or `else` with the rest of the action.
type BlockEnd<'a> = Option<(&'a str, Position)>;

impl<'a> Parser<'a> {
    fn block(&mut self) -> Parsed<(Vec<Node>, BlockEnd<'a>)> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (action, at) = match piece {
                Piece::Text("") => continue,
                Piece::Text(text) => {
                    nodes.push(Node::Text(text.to_owned()));
                    continue;
                }
                Piece::Action(action, at) => {
                    let lead = action.len() - action.trim_start_matches(is_space).len();
                    (action.trim_matches(is_space), at + lead)
                }
            };
            let (word, rest) = action.split_once(is_space).unwrap_or((action, ""));
            let rest_at = at + action.len() - rest.len();
            match word {
                "end" | "else" => return Ok((nodes, Some((action, at)))),
                "if" | "with" | "range" => nodes.push(self.branch(word, rest, rest_at, at)?),
                "break" => nodes.push(Node::Break),
                "continue" => nodes.push(Node::Continue),
                "define" | "template" | "block" => {
                    return Err((at, format!("{word} is not supported")));
                }
                _ => {
                    let pipeline = PipelineParser::new(action, at).pipeline(None)?;
                    nodes.push(match pipeline.variables.is_empty() {
                        true => Node::Print(pipeline),
                        false => Node::Assign(pipeline),
                    });
                }
            }
        }
        Ok((nodes, None))
    }

    fn branch(&mut self, word: &str, rest: &str, rest_at: Position, at: Position) -> Parsed<Node> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err((at, format!("more than {MAX_DEPTH} blocks are in each other")));
        }
        let condition = PipelineParser::new(rest, rest_at).pipeline(None)?;
        let (then, end) = self.block()?;
        let otherwise = match end {
            Some(("end", _)) => Vec::new(),
            Some((action, else_at)) => {
                let chained = action["else".len()..].trim_start_matches(is_space);
                match chained.split_once(is_space) {
                    // `else if` is one branch more, ended by the same `end`.
                    Some((chain @ ("if" | "with"), rest)) => {
                        let rest_at = else_at + action.len() - rest.len();
                        vec![self.branch(chain, rest, rest_at, else_at)?]
                    }
                    _ if chained.is_empty() => match self.block()? {
                        (nodes, Some(("end", _))) => nodes,
                        _ => return Err((at, format!("<<{word}>> has no <<end>>"))),
                    },
                    _ => return Err((else_at, format!("<<{action}>> is not known"))),
                }
            }
            None => return Err((at, format!("<<{word}>> has no <<end>>"))),
        };
        self.depth -= 1;
        Ok(match word {
            "if" => Node::If { condition, then, otherwise },
            "with" => Node::With { value: condition, then, otherwise },
            _ => Node::Range { over: condition, body: then, otherwise },
        })
    }
}
