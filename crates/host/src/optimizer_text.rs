//! An optimizer's settings as text, in a checkpoint: `sgd momentum=0.9 dampening=0 weight_decay=0.0001 nesterov=false`.
//! Numbers come back with the bits they had.

use std::collections::BTreeMap;

use outboard_wire::Optimizer;

pub(crate) fn print(optimizer: &Optimizer) -> String {
    match optimizer {
        Optimizer::Sgd {
            momentum,
            dampening,
            weight_decay,
            nesterov,
        } => format!(
            "sgd momentum={momentum} dampening={dampening} weight_decay={weight_decay} nesterov={nesterov}"
        ),
        Optimizer::Adam {
            betas: (beta1, beta2),
            eps,
            weight_decay,
            amsgrad,
            decoupled,
        } => format!(
            "{} beta1={beta1} beta2={beta2} eps={eps} weight_decay={weight_decay} amsgrad={amsgrad}",
            if *decoupled { "adamw" } else { "adam" }
        ),
    }
}

pub(crate) fn parse(text: &str) -> Option<Optimizer> {
    let mut words = text.split(' ');
    let name = words.next()?;
    let settings: BTreeMap<&str, &str> = words
        .map(|word| word.split_once('='))
        .collect::<Option<_>>()?;
    let number = |key: &str| {
        let value: f64 = settings.get(key)?.parse().ok()?;
        value.is_finite().then_some(value)
    };
    let flag = |key: &str| settings.get(key)?.parse::<bool>().ok();
    match name {
        "sgd" => Some(Optimizer::Sgd {
            momentum: number("momentum")?,
            dampening: number("dampening")?,
            weight_decay: number("weight_decay")?,
            nesterov: flag("nesterov")?,
        }),
        "adam" | "adamw" => Some(Optimizer::Adam {
            betas: (number("beta1")?, number("beta2")?),
            eps: number("eps")?,
            weight_decay: number("weight_decay")?,
            amsgrad: flag("amsgrad")?,
            decoupled: name == "adamw",
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses() {
        let sgd = Optimizer::Sgd {
            momentum: 0.9,
            dampening: 0.0,
            weight_decay: 1.0 / 3.0,
            nesterov: false,
        };
        assert_eq!(
            print(&sgd),
            "sgd momentum=0.9 dampening=0 weight_decay=0.3333333333333333 nesterov=false"
        );
        for decoupled in [false, true] {
            let adam = Optimizer::Adam {
                betas: (0.9, 0.999),
                eps: 1e-8,
                weight_decay: 1e-300,
                amsgrad: true,
                decoupled,
            };
            assert_eq!(parse(&print(&adam)), Some(adam));
        }
        assert_eq!(parse(&print(&sgd)), Some(sgd));
        for wrong in [
            "",
            "sgd",
            "lion lr=1",
            "sgd momentum=NaN dampening=0 weight_decay=0 nesterov=false",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
