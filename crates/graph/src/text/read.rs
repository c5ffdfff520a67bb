//! Parsing: one pass over the text, every count bounded.

use std::collections::BTreeMap;

use super::attribute::Attribute;
use super::{MAX_TEXT, TextError};
use crate::error::MAX_NAME;
use crate::graph::MAX_VALUES;
use crate::infer::MAX_OPERANDS;
use crate::{Graph, Input, InputKind, Node, Op, Output, OutputKind, TensorType, Value, ValueId};

/// A mistake at a byte of the text.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    position: usize,
    reason: String,
}

impl SyntaxError {
    pub(crate) fn new(position: usize, reason: impl Into<String>) -> Self {
        SyntaxError {
            position,
            reason: reason.into(),
        }
    }

    /// With the position as line and column.
    pub(crate) fn located(self, text: &str) -> TextError {
        let before = text.get(..self.position).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or("").chars().count();
        TextError::Syntax {
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: column + 1,
            reason: self.reason,
        }
    }
}

/// A place in the text.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    text: &'a str,
    position: usize,
    /// Whether the next argument of the call being read is its first.
    first_argument: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Reader {
            text,
            position: 0,
            first_argument: true,
        }
    }

    pub(crate) fn error(&self, reason: impl Into<String>) -> SyntaxError {
        SyntaxError::new(self.position, reason)
    }

    /// Where the next token starts.
    pub(crate) fn position(&mut self) -> usize {
        self.skip_space();
        self.position
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.position..).unwrap_or("")
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.position += rest.len() - trimmed.len();
    }

    fn at_end(&mut self) -> bool {
        self.position() == self.text.len()
    }

    /// Takes this punctuation if it comes next.
    pub(crate) fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.position += token.len();
        }
        found
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<(), SyntaxError> {
        if self.take(token) {
            return Ok(());
        }
        let found: String = self.rest().chars().take(20).collect();
        let found = found.lines().next().unwrap_or("");
        Err(self.error(format!("expected `{token}`, found `{found}`")))
    }

    /// The next word without taking it: letters, digits, `_`, `.`, `+`, `-`.
    fn peek_word(&mut self) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-')))
            .unwrap_or(rest.len());
        rest.get(..end).unwrap_or("")
    }

    /// The next word, of bounded length.
    pub(crate) fn word(&mut self) -> Result<&'a str, SyntaxError> {
        let word = self.peek_word();
        if word.is_empty() {
            let found: String = self.rest().chars().take(1).collect();
            return Err(self.error(format!("expected a word, found `{found}`")));
        }
        if word.len() > 64 {
            return Err(self.error("a word of more than 64 bytes"));
        }
        self.position += word.len();
        Ok(word)
    }

    /// Takes this word if it comes next, as a whole word.
    pub(crate) fn take_keyword(&mut self, keyword: &str) -> bool {
        let found = self.peek_word() == keyword;
        if found {
            self.position += keyword.len();
        }
        found
    }

    /// `, name=value` (without the comma for the first argument).
    pub(crate) fn attribute<T: Attribute>(&mut self, name: &str) -> Result<T, SyntaxError> {
        self.separator()?;
        if !self.take_keyword(name) {
            return Err(self.error(format!("expected attribute `{name}`")));
        }
        self.expect("=")?;
        T::read(self)
    }

    fn separator(&mut self) -> Result<(), SyntaxError> {
        if std::mem::take(&mut self.first_argument) {
            return Ok(());
        }
        self.expect(",")
    }

    fn number(&mut self) -> Result<u32, SyntaxError> {
        let start = self.position();
        let word = self.word()?;
        // One way to write a number, so that printing gives the same text.
        let plain = word.bytes().all(|byte| byte.is_ascii_digit())
            && (word == "0" || !word.starts_with('0'));
        plain
            .then(|| word.parse().ok())
            .flatten()
            .ok_or_else(|| SyntaxError::new(start, format!("`{word}` is not a number")))
    }

    fn value(&mut self) -> Result<ValueId, SyntaxError> {
        self.expect("%")?;
        Ok(ValueId(self.number()?))
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        self.expect("\"")?;
        let start = self.position;
        let mut string = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((offset, c)) = chars.next() {
            if string.len() > MAX_NAME {
                return Err(SyntaxError::new(
                    start,
                    format!("a name of more than {MAX_NAME} bytes"),
                ));
            }
            let here = start + offset;
            match c {
                '"' => {
                    self.position = here + 1;
                    return Ok(string);
                }
                '\\' => match chars.next() {
                    Some((_, c @ ('"' | '\\'))) => string.push(c),
                    Some((_, 'u')) => {
                        let mut digits = String::new();
                        let open = chars.next().map(|(_, c)| c);
                        let closed = chars.by_ref().map(|(_, c)| c).take(8).any(|c| {
                            digits.extend((c != '}').then_some(c));
                            c == '}'
                        });
                        let c = u32::from_str_radix(&digits, 16)
                            .ok()
                            .filter(|_| open == Some('{') && closed)
                            .and_then(char::from_u32)
                            .ok_or_else(|| SyntaxError::new(here, "not an escaped character"))?;
                        string.push(c);
                    }
                    _ => return Err(SyntaxError::new(here, "not an escaped character")),
                },
                c if c.is_control() => {
                    return Err(SyntaxError::new(here, "a control character in a name"));
                }
                c => string.push(c),
            }
        }
        Err(SyntaxError::new(start, "a name that does not end"))
    }

    fn ty(&mut self) -> Result<TensorType, SyntaxError> {
        let start = self.position();
        let rest = self.rest();
        // The longest type that keeps the limits is far shorter.
        let end = rest.find(']').filter(|&end| end < 256);
        let text = end
            .and_then(|end| rest.get(..=end))
            .ok_or_else(|| SyntaxError::new(start, "expected a type such as `f32[B,3,224,224]`"))?;
        let ty: TensorType = text
            .parse()
            .map_err(|error| SyntaxError::new(start, format!("{error}")))?;
        self.position += text.len();
        Ok(ty)
    }

    /// The operands of a call; stops before its attributes.
    fn operands(&mut self) -> Result<Vec<Option<ValueId>>, SyntaxError> {
        let mut operands = Vec::new();
        loop {
            let before = self.position;
            let first = self.first_argument;
            if !first && !self.take(",") {
                return Ok(operands);
            }
            self.skip_space();
            let operand = if self.rest().starts_with('%') {
                Some(self.value()?)
            } else if self.take_keyword("none") {
                None
            } else {
                self.position = before;
                return Ok(operands);
            };
            if operands.len() == MAX_OPERANDS {
                return Err(self.error(format!("more than {MAX_OPERANDS} operands")));
            }
            operands.push(operand);
            self.first_argument = false;
        }
    }
}

/// Values as they are defined, in any order of their numbers.
#[derive(Default)]
struct Definitions(BTreeMap<u32, TensorType>);

impl Definitions {
    /// `%7: f32[B,64]`.
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<ValueId, SyntaxError> {
        let start = reader.position();
        let value = reader.value()?;
        reader.expect(":")?;
        let ty = reader.ty()?;
        if self.0.len() == MAX_VALUES {
            return Err(SyntaxError::new(
                start,
                format!("more than {MAX_VALUES} values"),
            ));
        }
        if self.0.insert(value.0, ty).is_some() {
            return Err(SyntaxError::new(start, format!("{value} is defined twice")));
        }
        Ok(value)
    }

    /// The values by number; every number up to the highest must be there.
    fn finish(self, reader: &Reader<'_>) -> Result<Vec<Value>, SyntaxError> {
        let mut values = Vec::with_capacity(self.0.len());
        for (wanted, (number, ty)) in (0_u32..).zip(self.0) {
            if number != wanted {
                return Err(reader.error(format!("%{wanted} is not defined, %{number} is")));
            }
            values.push(Value { ty });
        }
        Ok(values)
    }
}

pub(super) fn read_graph(text: &str) -> Result<Graph, SyntaxError> {
    if text.len() > MAX_TEXT {
        return Err(SyntaxError::new(
            0,
            format!("a text of more than {MAX_TEXT} bytes"),
        ));
    }
    let mut reader = Reader::new(text);
    let reader = &mut reader;
    let mut graph = Graph::default();
    let mut definitions = Definitions::default();
    if !reader.take_keyword("graph") {
        return Err(reader.error("expected `graph`"));
    }
    graph.name = reader.string()?;
    reader.expect("{")?;
    while !reader.take_keyword("return") {
        read_statement(reader, &mut graph, &mut definitions)?;
    }
    if !reader.take("}") {
        loop {
            let start = reader.position();
            let word = reader.word()?;
            let kind = OutputKind::ALL
                .into_iter()
                .find(|kind| kind.name() == word)
                .ok_or_else(|| {
                    SyntaxError::new(start, format!("`{word}` is not a kind of output"))
                })?;
            let name = reader.string()?;
            let value = reader.value()?;
            graph.outputs.push(Output { value, kind, name });
            if reader.take("}") {
                break;
            }
            reader.expect(",")?;
        }
    }
    if !reader.at_end() {
        return Err(reader.error("text after the graph's end"));
    }
    graph.values = definitions.finish(reader)?;
    Ok(graph)
}

/// An input or a node.
fn read_statement(
    reader: &mut Reader<'_>,
    graph: &mut Graph,
    definitions: &mut Definitions,
) -> Result<(), SyntaxError> {
    let start = reader.position();
    let first = definitions.read(reader)?;
    let mut results = vec![first];
    while reader.take(",") {
        results.push(definitions.read(reader)?);
    }
    reader.expect("=")?;
    let name_start = reader.position();
    let name = reader.word()?;
    if !reader.take("(") {
        let kind = InputKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| {
                SyntaxError::new(
                    name_start,
                    format!("`{name}` is neither a kind of input nor an operator with `(`"),
                )
            })?;
        if results.len() > 1 || !graph.nodes.is_empty() {
            let reason = "an input has one value and stands before all nodes";
            return Err(SyntaxError::new(start, reason));
        }
        let name = reader.string()?;
        graph.inputs.push(Input {
            value: first,
            kind,
            name,
        });
        return Ok(());
    }
    reader.first_argument = true;
    let operands = reader.operands()?;
    let op = Op::read(name, reader)?
        .ok_or_else(|| SyntaxError::new(name_start, format!("unknown operator `{name}`")))?;
    reader.expect(")")?;
    let scope = match reader.take("@") {
        true => reader.string()?,
        false => String::new(),
    };
    let origin = match reader.take("#") {
        true => reader.number()?,
        // Bounded by the number of values, which `u32` holds.
        false => u32::try_from(graph.nodes.len()).unwrap_or(u32::MAX),
    };
    graph.nodes.push(Node {
        op,
        operands,
        results,
        scope,
        origin,
    });
    Ok(())
}
