//! Printing.

use std::fmt::Write as _;

use crate::{Graph, Node, Op, ValueId};

pub(super) fn print_graph(text: &mut String, graph: &Graph) {
    text.push_str("graph ");
    print_string(text, &graph.name);
    text.push_str(" {\n");
    for input in &graph.inputs {
        text.push_str("  ");
        print_definition(text, graph, input.value);
        // Writing to a string cannot fail.
        _ = write!(text, " = {} ", input.kind);
        print_string(text, &input.name);
        text.push('\n');
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        text.push_str("  ");
        print_node(text, graph, index, node);
        text.push('\n');
    }
    text.push_str("  return");
    for (index, output) in graph.outputs.iter().enumerate() {
        text.push_str(if index == 0 { " " } else { ", " });
        _ = write!(text, "{} ", output.kind);
        print_string(text, &output.name);
        _ = write!(text, " {}", output.value);
    }
    text.push_str("\n}\n");
}

pub(super) fn print_node(text: &mut String, graph: &Graph, index: usize, node: &Node) {
    for (position, result) in node.results.iter().enumerate() {
        if position > 0 {
            text.push_str(", ");
        }
        print_definition(text, graph, *result);
    }
    text.push_str(" = ");
    print_call(text, &node.op, &node.operands);
    if !node.scope.is_empty() {
        text.push_str(" @ ");
        print_string(text, &node.scope);
    }
    if usize::try_from(node.origin) != Ok(index) {
        _ = write!(text, " #{}", node.origin);
    }
}

/// `name(%0, none, attribute=value)`.
pub(crate) fn print_call(text: &mut String, op: &Op, operands: &[Option<ValueId>]) {
    text.push_str(op.name());
    text.push('(');
    let mut first = true;
    let mut separate = |text: &mut String| {
        if !std::mem::take(&mut first) {
            text.push_str(", ");
        }
    };
    for operand in operands {
        separate(text);
        match operand {
            Some(value) => _ = write!(text, "{value}"),
            None => text.push_str("none"),
        }
    }
    op.visit_attributes(&mut |name, attribute| {
        separate(text);
        text.push_str(name);
        text.push('=');
        attribute.print(text);
    });
    text.push(')');
}

/// A name in quotes; quotes, backslashes and control characters are escaped.
pub(crate) fn print_string(text: &mut String, string: &str) {
    text.push('"');
    for c in string.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => _ = write!(text, "\\u{{{:x}}}", u32::from(c)),
            c => text.push(c),
        }
    }
    text.push('"');
}

/// `%7: f32[B,64]`.
fn print_definition(text: &mut String, graph: &Graph, value: ValueId) {
    match graph.ty(value) {
        Some(ty) => _ = write!(text, "{value}: {ty}"),
        // Only a graph that `verify` refuses has a value without a type; it still prints, for the error message.
        None => _ = write!(text, "{value}: ?"),
    }
}
