//! The formula of a ScaledObject's `advanced.scalingModifiers`, as one PromQL query.
//!
//! Sources: `pkg/scaling/modifiers` of KEDA 2, which evaluates `float(FORMULA)` with a float for
//! each named trigger, and github.com/expr-lang/expr 1.17, the language of the formula.
//!
//! A part is converted only if PromQL computes the same number. The query has no result where KEDA
//! fails: if any trigger of the formula has no value, even one in the branch that is not chosen.
//! Only triggers in operands of `??` may have none.

mod number;
mod operand;
mod tokens;

use crate::promql::bounds::USER_QUERY;
use crate::promql::tree;
use number::{Condition, Number};
use operand::Operand;
pub use operand::{nan_as_zero, trigger_value, without_nan};
use std::collections::BTreeMap;
use tokens::Token;

/// The most bytes of a query: what the schema allows for `customMetrics[].query`.
const LONGEST: usize = 8192;
/// How deep a formula may be nested.
const DEEPEST: usize = 40;

/// Converts a formula to PromQL. `operands` has the queries of the triggers by their names: see
/// [`trigger_value`]. The result of the query is one series without labels. Prometheus fails on an
/// operand of several series, as KEDA does.
///
/// # Errors
/// If a part of the formula has no exact counterpart: the message names the part.
pub fn to_promql(formula: &str, operands: &BTreeMap<String, String>) -> Result<String, String> {
    let tokens = tokens::tokens(formula)?;
    let mut parser = Parser { tokens, at: 0, depth: 0, operands, element: None };
    let result = parser.expression(0)?;
    if parser.peek() != Token::End {
        return Err(unexpected(parser.peek()));
    }
    let Term::Number(result) = result else {
        return Err("the result of the formula is not a number".to_owned());
    };
    let result = result.vector();
    let mut guards = String::new();
    for name in result.reads.difference(&result.proves) {
        let operand = parser.operand(name)?;
        if !operand.never_empty {
            guards += &format!(" and {}", operand.number.atom());
        }
    }
    let query = if guards.is_empty() { result.text } else { result.atom() + &guards };
    check_length(query.len())?;
    tree::parse(&query, &USER_QUERY).map_err(|error| format!("the converted query: {error}"))?;
    Ok(query)
}

fn check_length(bytes: usize) -> Result<(), String> {
    if bytes <= LONGEST {
        return Ok(());
    }
    Err(format!("the converted query is longer than {LONGEST} bytes"))
}

fn unexpected(token: Token<'_>) -> String {
    match token {
        Token::End => "the formula ends too early".to_owned(),
        Token::Number(value, _) => format!("`{value}` is not expected where it is"),
        Token::Name(part) | Token::Symbol(part) => {
            format!("`{part}` has no counterpart in PromQL, or is not expected where it is")
        }
    }
}

/// A value of the formula.
enum Term<'a> {
    Number(Number<'a>),
    Condition(Condition<'a>),
    List(Vec<Number<'a>>),
}

impl<'a> Term<'a> {
    fn number(self, part: &str) -> Result<Number<'a>, String> {
        match self {
            Self::Number(number) => Ok(number),
            _ => Err(format!("`{part}` is of a condition or a list, not of a number")),
        }
    }

    fn condition(self, part: &str) -> Result<Condition<'a>, String> {
        match self {
            Self::Condition(condition) => Ok(condition),
            _ => Err(format!("`{part}` is of a number or a list, not of a condition")),
        }
    }
}

/// The precedence of a binary operator of expr. Those that are not here are not converted.
fn precedence(operator: &str) -> Option<u16> {
    Some(match operator {
        "or" | "||" => 10,
        "and" | "&&" => 15,
        "==" | "!=" | "<" | "<=" | ">" | ">=" => 20,
        "+" | "-" => 30,
        "*" | "/" | "%" => 60,
        "**" | "^" => 100,
        "??" => 500,
        _ => return None,
    })
}

fn combine<'a>(left: Term<'a>, operator: &str, right: Term<'a>) -> Result<Term<'a>, String> {
    if let "or" | "||" | "and" | "&&" = operator {
        let (left, right) = (left.condition(operator)?, right.condition(operator)?);
        let or = matches!(operator, "or" | "||");
        return Ok(Term::Condition(if or { left.or(&right) } else { left.and(&right) }));
    }
    let (left, right) = (left.number(operator)?, right.number(operator)?);
    let ints = left.int && right.int;
    Ok(Term::Number(match operator {
        "==" | "!=" => return Ok(Term::Condition(Condition::compare(&left, operator, &right))),
        "**" | "^" => left.binary("^", &right, false),
        "/" => left.binary("/", &right, false),
        // expr fails on a division by 0. PromQL has NaN there, which a comparison would hide.
        "%" if !ints || !right.is_some_int() => {
            return Err("`%` is converted only for an int (triggers are floats) and a written \
                        number, such as `int(a) % 2`"
                .to_owned());
        }
        "??" if !left.nullable => {
            return Err("`??` after something other than the name of a trigger".to_owned());
        }
        "??" => left.or_else(&right),
        _ => left.binary(operator, &right, ints),
    }))
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
    operands: &'a BTreeMap<String, String>,
    /// The value of `#`, in a predicate.
    element: Option<Number<'a>>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End)
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let accepted = self.peek() == Token::Symbol(symbol);
        self.at += usize::from(accepted);
        accepted
    }

    fn expect(&mut self, symbol: &str) -> Result<(), String> {
        if self.accept(symbol) { Ok(()) } else { Err(unexpected(self.peek())) }
    }

    fn operand(&self, name: &'a str) -> Result<Operand<'a>, String> {
        match self.operands.get(name) {
            Some(query) => Operand::new(name, query),
            None => Err(format!("`{name}` is not the name of a trigger that is converted")),
        }
    }

    /// Parses operators of at least this precedence, in the steps of expr's own parser.
    fn expression(&mut self, least: u16) -> Result<Term<'a>, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(format!("the formula is nested more than {DEEPEST} levels deep"));
        }
        let mut left = self.primary()?;
        let mut previous = "";
        while let Token::Symbol(operator) = self.peek()
            && let Some(precedence) = precedence(operator)
            && precedence >= least
        {
            if previous == "??" && operator != "??" {
                return Err(format!("`{operator}` next to `??`: write parentheses"));
            }
            self.at += 1;
            // `**` and `^` are right-associative.
            let above = precedence + u16::from(precedence != 100);
            let right = self.expression(above)?;
            left = match operator {
                "<" | "<=" | ">" | ">=" => self.chain(left, operator, right, above)?,
                _ => combine(left, operator, right)?,
            };
            check_length(match &left {
                Term::Number(number) => number.text.len(),
                Term::Condition(condition) => condition.longest(),
                Term::List(_) => 0,
            })?;
            previous = operator;
        }
        if least == 0 && self.accept("?") {
            let condition = left.condition("?")?;
            let yes = self.expression(0)?.number("?")?;
            self.expect(":")?;
            let no = self.expression(0)?.number(":")?;
            let chosen = condition.choose(&yes, &no);
            check_length(chosen.text.len())?;
            left = Term::Number(chosen);
        }
        self.depth -= 1;
        Ok(left)
    }

    /// Parses the rest of comparisons: `a < b < c` is `a < b && b < c`.
    fn chain(
        &mut self,
        left: Term<'a>,
        operator: &str,
        right: Term<'a>,
        above: u16,
    ) -> Result<Term<'a>, String> {
        let mut last = right.number(operator)?;
        let mut all = Condition::compare(&left.number(operator)?, operator, &last);
        while let Token::Symbol(operator @ ("<" | "<=" | ">" | ">=")) = self.peek() {
            self.at += 1;
            let next = self.expression(above)?.number(operator)?;
            all = all.and(&Condition::compare(&last, operator, &next));
            check_length(all.longest())?;
            last = next;
        }
        Ok(Term::Condition(all))
    }

    fn primary(&mut self) -> Result<Term<'a>, String> {
        let token = self.peek();
        self.at += 1;
        Ok(match token {
            Token::Number(value, int) => Term::Number(Number::literal(value, int)),
            Token::Symbol("-") => Term::Number(self.expression(90)?.number("-")?.negated()),
            Token::Symbol("+") => {
                Term::Number(Number { nullable: false, ..self.expression(90)?.number("+")? })
            }
            Token::Symbol(not @ ("!" | "not")) => {
                Term::Condition(self.expression(50)?.condition(not)?.negated())
            }
            Token::Symbol("(") => {
                let inner = self.expression(0)?;
                self.expect(")")?;
                inner
            }
            Token::Symbol("[") => {
                let items = self.terms("]")?.into_iter();
                Term::List(items.map(|item| item.number("[")).collect::<Result<_, _>>()?)
            }
            Token::Symbol("#") => {
                Term::Number(self.element.clone().ok_or_else(|| unexpected(token))?)
            }
            Token::Name(name) if self.accept("(") => self.call(name)?,
            Token::Name(name) => Term::Number(self.operand(name)?.number),
            token => return Err(unexpected(token)),
        })
    }

    /// Parses terms up to a closing bracket.
    fn terms(&mut self, close: &str) -> Result<Vec<Term<'a>>, String> {
        let mut terms = Vec::new();
        while !self.accept(close) {
            if !terms.is_empty() {
                self.expect(",")?;
                if self.accept(close) {
                    break;
                }
            }
            terms.push(self.expression(0)?);
        }
        Ok(terms)
    }

    fn call(&mut self, name: &'a str) -> Result<Term<'a>, String> {
        if let "count" | "any" | "all" | "none" = name {
            return self.predicate(name);
        }
        let terms = self.terms(")")?;
        let listed = matches!(terms[..], [Term::List(_)]);
        let mut numbers = Vec::new();
        for term in terms {
            match term {
                Term::List(items) => numbers.extend(items),
                term => numbers.push(term.number(name)?),
            }
        }
        let result = apply(name, &numbers, listed)
            .ok_or_else(|| format!("`{name}` of such arguments has no counterpart in PromQL"))?;
        check_length(result.text.len())?;
        Ok(Term::Number(result))
    }

    /// Parses the arguments of a function of a list and a predicate, which is parsed once for each
    /// item.
    fn predicate(&mut self, name: &str) -> Result<Term<'a>, String> {
        let refused = || {
            format!("`{name}` is converted for a list and a predicate, without another around it")
        };
        let Term::List(items) = self.expression(0)? else {
            return Err(refused());
        };
        if !self.accept(",") || self.element.is_some() {
            return Err(refused());
        }
        let braced = self.accept("{");
        let start = self.at;
        let mut conditions = Vec::new();
        for item in items {
            (self.at, self.element) = (start, Some(item));
            conditions.push(self.expression(0)?.condition(name)?);
        }
        self.element = None;
        if braced {
            self.expect("}")?;
        }
        self.accept(",");
        self.expect(")")?;
        let conditions = conditions.into_iter();
        let result = match name {
            "count" => conditions
                .map(|condition| condition.number)
                .reduce(|sum, one| sum.binary("+", &one, true))
                .map(Term::Number),
            "all" => conditions.reduce(|all, one| all.and(&one)).map(Term::Condition),
            _ => {
                let any = conditions.reduce(|any, one| any.or(&one));
                any.map(|any| if name == "any" { any } else { any.negated() }).map(Term::Condition)
            }
        };
        result.ok_or_else(refused)
    }
}

/// Calls a function of numbers, if it has a counterpart. `listed` says whether they are one list.
fn apply<'a>(name: &str, numbers: &[Number<'a>], listed: bool) -> Option<Number<'a>> {
    let lone = if listed { None } else { numbers.first().filter(|_| numbers.len() == 1) };
    let extreme = |function: &str, numbers: &[Number<'a>]| {
        numbers.iter().cloned().reduce(|most, next| most.clamped(function, &[&next]))
    };
    Some(match (name, lone) {
        ("float", Some(number)) => Number { int: false, nullable: false, ..number.clone() },
        ("int", Some(number)) if number.int => number.clone(),
        ("int", Some(number)) => Number { int: true, ..number.called_without_sign("floor") },
        ("round", Some(number)) => number.called_without_sign("round"),
        ("abs" | "ceil" | "floor", Some(number)) => number.called(name),
        ("max", _) => extreme("clamp_min", numbers)?,
        ("min", _) => extreme("clamp_max", numbers)?,
        // expr adds up a list from its end.
        ("sum", None) if listed => {
            numbers.iter().rev().cloned().reduce(|sum, item| item.binary("+", &sum, false))?
        }
        ("mean", _) | ("median", _) if name == "mean" || numbers.len() <= 2 => {
            let count = Number::literal(numbers.len() as f64, true);
            let sum = numbers.iter().cloned().reduce(|sum, item| sum.binary("+", &item, false))?;
            sum.binary("/", &count, false)
        }
        ("median", _) => {
            let [pair @ .., last] = numbers else { return None };
            let [_, _] = pair else { return None };
            last.clamped("clamp", &[&extreme("clamp_max", pair)?, &extreme("clamp_min", pair)?])
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
