//! Whether the programs of an assignment fit each other, their weights and the stages next to them.

use std::collections::{BTreeMap, BTreeSet};

use outboard_graph::{DType, Dim, Graph, InputKind, OutputKind, TensorType};
use outboard_wire::{StageAssignment, StateKind};

use super::{LOSS, Port, Ports, Programs, Signature, inputs, outputs, refuse, split_use};
use crate::event::JobError;

use InputKind as I;
use OutputKind as O;

/// Checks the programs of one stage.
pub(super) fn check(assignment: &StageAssignment, programs: &Programs) -> Result<(), JobError> {
    let stage = assignment.stage;
    let check = |what: &str, found: Result<(), String>| {
        found.map_err(|reason| refuse(stage, what, &reason))
    };
    check("its programs", complete(programs))?;
    if let (Some(forward), Some(backward), Some(weight)) =
        (&programs.forward, &programs.backward, &programs.weight)
    {
        check("F", forward_program(forward))?;
        check("B", backward_program(forward, backward))?;
        check("W", weight_program(forward, backward, weight))?;
    }
    if let Some(normaliser) = &programs.normaliser {
        check("the normaliser", normaliser_program(normaliser))?;
        check("the normaliser", same_data(programs))?;
    }
    if let Some(evaluate) = &programs.evaluate {
        check("the evaluation program", forward_program(evaluate))?;
    }
    check("its weights", weights(assignment, programs))
}

/// Training needs `F`, `B` and `W` together; a loss needs its normaliser.
fn complete(programs: &Programs) -> Result<(), String> {
    let trains = [&programs.forward, &programs.backward, &programs.weight];
    if trains.iter().any(|program| program.is_some()) && trains.iter().any(|p| p.is_none()) {
        return Err("F, B and W must be given together".to_owned());
    }
    if programs.forward.is_none() && programs.evaluate.is_none() {
        return Err("there is neither F nor an evaluation program".to_owned());
    }
    let losses = programs
        .forward
        .iter()
        .flat_map(|forward| outputs(forward, O::LossSum))
        .count();
    match (losses, &programs.normaliser) {
        (0, None) | (1, Some(_)) => Ok(()),
        (0, Some(_)) => Err("there is a normaliser but F gives no loss_sum".to_owned()),
        (1, None) => {
            Err("F gives a loss_sum but there is no normaliser to divide it by".to_owned())
        }
        (more, _) => Err(format!("F gives {more} losses; a model has one")),
    }
}

/// Every input and output is of one of these kinds.
fn kinds(program: &Graph, takes: &[InputKind], gives: &[OutputKind]) -> Result<(), String> {
    for input in &program.inputs {
        if !takes.contains(&input.kind) {
            return Err(format!("it takes {:?} as {:?}", input.name, input.kind));
        }
    }
    for output in &program.outputs {
        if !gives.contains(&output.kind) {
            return Err(format!("it gives {:?} as {:?}", output.name, output.kind));
        }
    }
    Ok(())
}

fn forward_program(forward: &Graph) -> Result<(), String> {
    kinds(
        forward,
        &[I::Parameter, I::Frozen, I::Buffer, I::Data, I::Activation],
        &[
            O::Activation,
            O::BufferUpdate,
            O::Result,
            O::LossSum,
            O::Saved,
        ],
    )?;
    let buffers = named(inputs(forward, I::Buffer));
    for update in outputs(forward, O::BufferUpdate) {
        same(buffers.get(&update.name), &update, "the buffer it updates")?;
    }
    outputs(forward, O::LossSum).try_for_each(|loss| scalar(&loss))
}

fn backward_program(forward: &Graph, backward: &Graph) -> Result<(), String> {
    kinds(
        backward,
        &[I::Parameter, I::Frozen, I::Saved, I::Cotangent],
        &[O::Cotangent, O::Saved, O::ParameterGradient],
    )?;
    let saved = named(outputs(forward, O::Saved));
    for input in inputs(backward, I::Saved) {
        same(saved.get(&input.name), &input, "a value that F saves")?;
    }
    let sent = named(outputs(forward, O::Activation));
    for input in inputs(backward, I::Cotangent) {
        if input.name == LOSS {
            if outputs(forward, O::LossSum).next().is_none() {
                return Err("it takes the loss's cotangent but F gives no loss".to_owned());
            }
            scalar(&input)?;
        } else {
            same(sent.get(&input.name), &input, "an activation that F gives")?;
        }
    }
    let received = named(inputs(forward, I::Activation));
    for output in outputs(backward, O::Cotangent) {
        same(
            received.get(&output.name),
            &output,
            "an activation that F takes",
        )?;
    }
    for output in outputs(backward, O::Saved) {
        if saved.contains_key(&output.name) {
            return Err(format!("it saves {:?}, which F saves too", output.name));
        }
    }
    gradients(backward)
}

fn weight_program(forward: &Graph, backward: &Graph, weight: &Graph) -> Result<(), String> {
    kinds(
        weight,
        &[I::Parameter, I::Frozen, I::Saved],
        &[O::ParameterGradient],
    )?;
    let saved = named(outputs(forward, O::Saved).chain(outputs(backward, O::Saved)));
    for input in inputs(weight, I::Saved) {
        same(saved.get(&input.name), &input, "a value that F or B saves")?;
    }
    let early: BTreeSet<String> = outputs(backward, O::ParameterGradient)
        .map(|port| port.name)
        .collect();
    if let Some(twice) = outputs(weight, O::ParameterGradient).find(|g| early.contains(&g.name)) {
        return Err(format!("it gives {:?}, which B gives too", twice.name));
    }
    gradients(weight)
}

/// Gradients are named after a parameter's use and do not depend on the batch; [`weights`] checks their types.
fn gradients(program: &Graph) -> Result<(), String> {
    for gradient in outputs(program, O::ParameterGradient) {
        if split_use(&gradient.name).is_none() {
            return Err(format!(
                "the gradient {:?} is not named NAME#ORIGIN.OPERAND",
                gradient.name
            ));
        }
    }
    Ok(())
}

fn normaliser_program(normaliser: &Graph) -> Result<(), String> {
    kinds(normaliser, &[I::Data, I::Frozen], &[O::LossWeight])?;
    match normaliser.outputs.len() {
        1 => outputs(normaliser, O::LossWeight).try_for_each(|weight| scalar(&weight)),
        other => Err(format!("it gives {other} loss weights")),
    }
}

/// Where `F` and the normaliser take the same data, they agree on its type.
fn same_data(programs: &Programs) -> Result<(), String> {
    let (Some(forward), Some(normaliser)) = (&programs.forward, &programs.normaliser) else {
        return Ok(());
    };
    let taken = named(inputs(forward, I::Data));
    for input in inputs(normaliser, I::Data) {
        if taken.contains_key(&input.name) {
            same(taken.get(&input.name), &input, "the data that F takes")?;
        }
    }
    Ok(())
}

/// Every weight that a program takes is announced with its type, and nothing else is; the optimizer's state belongs to
/// parameters; gradients have the type of their parameter.
fn weights(assignment: &StageAssignment, programs: &Programs) -> Result<(), String> {
    let mut announced: BTreeMap<&str, TensorType> = BTreeMap::new();
    for spec in &assignment.weights {
        let dims: Option<Vec<Dim>> = spec
            .dims
            .iter()
            .map(|dim| usize::try_from(*dim).ok().map(Dim::Fixed))
            .collect();
        let ty = TensorType {
            dtype: spec.dtype,
            dims: dims.ok_or_else(|| format!("{:?} is too large", spec.name))?,
        };
        ty.check_limits()
            .map_err(|error| format!("{:?}: {error}", spec.name))?;
        match spec.state {
            StateKind::Weights => {
                if announced.insert(&spec.name, ty).is_some() {
                    return Err(format!("{:?} is announced twice", spec.name));
                }
            }
            StateKind::Optimizer => {
                let parameter = spec.name.rsplit_once('/').map(|(name, _)| name);
                if parameter.and_then(|name| announced.get(name)) != Some(&ty) {
                    return Err(format!(
                        "the optimizer state {:?} fits no weight announced before it",
                        spec.name
                    ));
                }
            }
        }
    }
    let mut taken = BTreeSet::new();
    let mut parameters = BTreeSet::new();
    for program in programs.all() {
        for kind in [I::Parameter, I::Frozen, I::Buffer] {
            for input in inputs(program, kind) {
                match announced.get(input.name.as_str()) {
                    Some(ty) if *ty == input.ty => {}
                    Some(ty) => {
                        return Err(format!(
                            "{:?} is announced as {} but the programs take {}",
                            input.name, ty, input.ty
                        ));
                    }
                    None => return Err(format!("{:?} is taken but not announced", input.name)),
                }
                if kind == I::Parameter {
                    parameters.insert(input.name.clone());
                }
                taken.insert(input.name);
            }
        }
    }
    if let Some(extra) = announced.keys().find(|name| !taken.contains(**name)) {
        return Err(format!("{extra:?} is announced but no program takes it"));
    }
    for program in [&programs.backward, &programs.weight].into_iter().flatten() {
        for gradient in outputs(program, O::ParameterGradient) {
            let parameter = split_use(&gradient.name).map_or("", |(name, _)| name);
            if !parameters.contains(parameter)
                || announced.get(parameter) != Some(&gradient.ty)
                || gradient.ty.dtype != DType::F32
            {
                return Err(format!(
                    "the gradient {:?} of type {} fits no f32 parameter",
                    gradient.name, gradient.ty
                ));
            }
        }
    }
    Ok(())
}

/// Checks that two stages of one worker fit where one follows the other.
pub(crate) fn check_neighbours(before: &Signature, after: &Signature) -> Result<(), JobError> {
    let fits = |before: &Ports, after: &Ports| -> Result<(), String> {
        let given = named(before.activations_out.iter().cloned());
        for port in &after.activations_in {
            same(
                given.get(&port.name),
                port,
                "an activation of the stage before",
            )?;
        }
        let returned = named(after.cotangents_out.iter().cloned());
        for port in &before.cotangents_in {
            same(
                returned.get(&port.name),
                port,
                "a cotangent that this stage gives back",
            )?;
        }
        Ok(())
    };
    let modes = [
        (&before.train, &after.train),
        (&before.evaluate, &after.evaluate),
    ];
    for mode in modes {
        if let (Some(before), Some(after_ports)) = mode {
            fits(before, after_ports)
                .map_err(|reason| refuse(after.stage, "its borders", &reason))?;
        }
    }
    Ok(())
}

fn named(ports: impl IntoIterator<Item = Port>) -> BTreeMap<String, TensorType> {
    ports.into_iter().map(|port| (port.name, port.ty)).collect()
}

fn same(found: Option<&TensorType>, port: &Port, what: &str) -> Result<(), String> {
    match found {
        Some(ty) if *ty == port.ty => Ok(()),
        Some(ty) => Err(format!(
            "{:?} is {} but {what} of this name is {}",
            port.name, port.ty, ty
        )),
        None => Err(format!("{:?} is not {what}", port.name)),
    }
}

fn scalar(port: &Port) -> Result<(), String> {
    if port.ty.dtype == DType::F32 && port.ty.dims.is_empty() {
        Ok(())
    } else {
        Err(format!("{:?} is {} instead of f32[]", port.name, port.ty))
    }
}
