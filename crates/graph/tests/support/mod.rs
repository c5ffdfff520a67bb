//! What holds for the programs of every stage.

use std::collections::BTreeSet;

use outboard_graph::{Graph, InputKind, OutputKind, Stage, StagePrograms, zoo::ZooOptions};

/// Options for graphs small enough to look at many cuts.
#[allow(dead_code, reason = "not every test binary builds models")]
pub(crate) fn small() -> ZooOptions {
    ZooOptions {
        image_size: 32,
        channels: 1,
        classes: 10,
        ..ZooOptions::default()
    }
}

/// A stage from text.
#[allow(dead_code, reason = "not every test binary writes stages")]
pub(crate) fn stage(text: &str, differentiable: &[&str]) -> Stage {
    Stage {
        index: 1,
        graph: text
            .parse()
            .unwrap_or_else(|error| panic!("{error}\n{text}")),
        differentiable: differentiable.iter().map(ToString::to_string).collect(),
    }
}

fn inputs(graph: &Graph, kind: InputKind) -> BTreeSet<String> {
    let inputs = graph.inputs.iter().filter(|input| input.kind == kind);
    inputs.map(|input| input.name.clone()).collect()
}

fn outputs(graph: &Graph, kind: OutputKind) -> BTreeSet<String> {
    let outputs = graph.outputs.iter().filter(|output| output.kind == kind);
    outputs.map(|output| output.name.clone()).collect()
}

/// No node without a reader, no input without one.
fn check_lean(graph: &Graph) {
    let mut read: BTreeSet<_> = graph.outputs.iter().map(|output| output.value).collect();
    for node in &graph.nodes {
        read.extend(node.operands.iter().flatten().copied());
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        let used = node.results.iter().any(|result| read.contains(result));
        assert!(used, "{}: dead {}", graph.name, graph.node_text(index));
    }
    for input in &graph.inputs {
        assert!(
            read.contains(&input.value),
            "{}: unread {}",
            graph.name,
            input.name
        );
    }
}

/// The invariants of [`StagePrograms`].
pub(crate) fn check_programs(stage: &Stage, programs: &StagePrograms) {
    let StagePrograms {
        forward,
        backward,
        weight,
        normaliser,
    } = programs;
    for graph in [
        Some(forward),
        Some(backward),
        Some(weight),
        normaliser.as_ref(),
    ] {
        let Some(graph) = graph else { continue };
        graph
            .verify()
            .unwrap_or_else(|error| panic!("{error}\n{graph}"));
        check_lean(graph);
    }

    // Each program takes and gives the kinds that it may.
    use InputKind as In;
    use OutputKind as Out;
    let allowed: [(&Graph, &[In], &[Out]); 3] = [
        (
            forward,
            &[
                In::Parameter,
                In::Frozen,
                In::Buffer,
                In::Data,
                In::Activation,
            ],
            &[
                Out::Activation,
                Out::BufferUpdate,
                Out::Result,
                Out::LossSum,
                Out::Saved,
            ],
        ),
        (
            backward,
            &[In::Parameter, In::Frozen, In::Saved, In::Cotangent],
            &[Out::Cotangent, Out::Saved, Out::ParameterGradient],
        ),
        (
            weight,
            &[In::Parameter, In::Frozen, In::Saved],
            &[Out::ParameterGradient],
        ),
    ];
    for (graph, takes, gives) in allowed {
        assert!(
            graph.inputs.iter().all(|input| takes.contains(&input.kind)),
            "{graph}"
        );
        assert!(
            graph
                .outputs
                .iter()
                .all(|output| gives.contains(&output.kind)),
            "{graph}"
        );
    }

    // Whatever is saved is read, and the other way round, with the same types.
    let by_forward = outputs(forward, Out::Saved);
    let by_backward = outputs(backward, Out::Saved);
    assert!(by_forward.is_disjoint(&by_backward));
    let by_both: BTreeSet<_> = by_forward.union(&by_backward).cloned().collect();
    let read_by_backward = inputs(backward, In::Saved);
    let read_by_weight = inputs(weight, In::Saved);
    assert!(read_by_backward.is_subset(&by_forward));
    assert!(by_backward.is_subset(&read_by_weight));
    let read: BTreeSet<_> = read_by_backward.union(&read_by_weight).cloned().collect();
    assert_eq!(by_both, read);
    for reader in [backward, weight] {
        for input in reader.inputs.iter().filter(|input| input.kind == In::Saved) {
            let makers = [forward, backward];
            let ty = makers.iter().find_map(|maker| {
                let saved =
                    |o: &&outboard_graph::Output| o.kind == Out::Saved && o.name == input.name;
                maker.ty(maker.outputs.iter().find(saved)?.value)
            });
            assert_eq!(ty, reader.ty(input.value), "{}", input.name);
        }
    }

    // Cotangents answer activations, in name and type.
    let received = inputs(&stage.graph, In::Activation);
    let owed: BTreeSet<_> = received
        .intersection(&stage.differentiable)
        .cloned()
        .collect();
    assert_eq!(outputs(backward, Out::Cotangent), owed);
    let mut sent = outputs(&stage.graph, Out::Activation);
    sent.insert("loss".into());
    assert!(inputs(backward, In::Cotangent).is_subset(&sent));

    // Gradients are those of parameters, with their types, once a use.
    let gradients = [backward, weight].map(|graph| {
        let gradients = graph
            .outputs
            .iter()
            .filter(|o| o.kind == Out::ParameterGradient);
        for output in gradients {
            let name = output.name.rsplit_once('#').map(|(name, _)| name);
            let parameter = (stage.graph.inputs.iter())
                .find(|input| input.kind == In::Parameter && Some(input.name.as_str()) == name);
            let ty = parameter.and_then(|input| stage.graph.ty(input.value));
            assert_eq!(ty, graph.ty(output.value), "{}", output.name);
        }
        outputs(graph, Out::ParameterGradient)
    });
    assert!(gradients[0].is_disjoint(&gradients[1]));

    // Weights that B and W read are the stage's own.
    for kind in [In::Parameter, In::Frozen] {
        let own = inputs(&stage.graph, kind);
        for graph in [forward, backward, weight] {
            assert!(inputs(graph, kind).is_subset(&own));
        }
    }

    // Every backward node answers for a forward node of this stage.
    let origins: BTreeSet<u32> = stage.graph.nodes.iter().map(|node| node.origin).collect();
    for node in backward.nodes.iter().chain(&weight.nodes) {
        assert!(
            origins.contains(&node.origin),
            "{} has origin {}",
            node.op.name(),
            node.origin
        );
    }
}
