//! What may be typed. Parsing only: every value that could be wrong for the work at hand is judged where it is used.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use outboard_exec::Method;

/// Turn phones, tablets and spare computers into ML accelerators for a weak host.
#[derive(Debug, Parser)]
#[command(
    name = "outboard",
    version,
    after_help = "Examples:
  outboard demo                                          see it work in two minutes
  outboard worker                                        offer this computer (loopback only)
  outboard train resnet18 --data builtin --workers 1     train over this process and one more
  outboard train resnet34 --data images:photos --device tcp://10.0.0.7:7070 --image-size 224
  outboard plan resnet34 --device tcp://10.0.0.7:7070    see who would do what, and how fast

Exit codes: 0 all was done; 2 bad usage or input; 3 a device was lost; 130 stopped by Ctrl-C, after saving; 1 anything else."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one, for as long as the program runs"
)]
pub(crate) enum Command {
    /// Train a small ResNet on shipped images over all cores of this computer, and show what happened.
    Demo(Demo),
    /// Offer this computer to a host.
    Worker(Worker),
    /// Show the devices that answer, what they are and how fast their links are.
    Devices(Devices),
    /// Measure the devices and show which would run which part of a model, with the timeline.
    Plan(Plan),
    /// Train a model as a pipeline over this computer and any number of devices.
    Train(Train),
    /// Measure how fast this computer's engine is, without a pipeline.
    #[command(subcommand)]
    Bench(Bench),
}

/// `outboard demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  outboard demo --trace demo.trace.json     then open the file in ui.perfetto.dev"
)]
pub(crate) struct Demo {
    /// Devices, this process included; one per core (at most 4) unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) devices: Option<u16>,
    /// Where to keep measured profiles.
    #[command(flatten)]
    pub(crate) cache: CacheArguments,
    /// Write a Chrome/Perfetto trace of the last steps.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `outboard worker`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  outboard worker                                            loopback, port 7070
  outboard worker --listen 127.0.0.1:0 --json                any free port, printed as JSON
  outboard worker --listen 0.0.0.0:7070 --insecure-listen    anyone who reaches this port may use this computer")]
pub(crate) struct Worker {
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Allow an address that other computers reach. Links are not encrypted and hosts are not authenticated yet.
    #[arg(long)]
    pub(crate) insecure_listen: bool,
    /// Name shown to the host; the computer's name unless given.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Engine settings.
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// End when standard input ends: with the process that started this worker.
    #[arg(long, hide = true)]
    pub(crate) exit_with_parent: bool,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `outboard devices`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  outboard devices --device tcp://10.0.0.7:7070 --device tcp://10.0.0.8:7070"
)]
pub(crate) struct Devices {
    /// Which devices.
    #[command(flatten)]
    pub(crate) devices: DeviceArguments,
    /// Engine of this process.
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `outboard plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  outboard plan resnet34 --workers 1 --image-size 32
  outboard plan resnet50 --device tcp://10.0.0.7:7070 --image-size 224 --micro-batches auto")]
pub(crate) struct Plan {
    /// What to plan for.
    #[command(flatten)]
    pub(crate) work: WorkArguments,
    /// Which devices.
    #[command(flatten)]
    pub(crate) devices: DeviceArguments,
    /// How to cut and schedule.
    #[command(flatten)]
    pub(crate) pipeline: PipelineArguments,
    /// Engine of this process.
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Where to keep measured profiles.
    #[command(flatten)]
    pub(crate) cache: CacheArguments,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `outboard train`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  outboard train resnet18 --data builtin --workers 1 --epochs 2 --eval
  outboard train resnet34 --data fashion-mnist:/usr/share/datasets/fashion-mnist --image-size 32 --steps 100
  outboard train vit_tiny --data cifar10:data --optimizer adamw --lr 0.001 --lr-schedule warmup:100,cosine:2000
  outboard train resnet34 --data images:photos --image-size 224 --device tcp://10.0.0.7:7070 --checkpoint run1
  outboard train resnet34 --data images:photos --image-size 224 --resume run1     on any number of devices

Batch norm takes its statistics over one micro-batch, as PyTorch does when it accumulates gradients.")]
pub(crate) struct Train {
    /// What to train.
    #[command(flatten)]
    pub(crate) work: WorkArguments,
    /// Stop after this many steps in all, those before a resume included.
    #[arg(long, value_name = "N", conflicts_with = "epochs", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) steps: Option<u64>,
    /// Stop after this many passes over the training images; 1 unless steps are given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,
    /// Measure accuracy on the test images at the end.
    #[arg(long)]
    pub(crate) eval: bool,
    /// How to learn.
    #[command(flatten)]
    pub(crate) optimizer: OptimizerArguments,
    /// Which devices.
    #[command(flatten)]
    pub(crate) devices: DeviceArguments,
    /// How to cut and schedule.
    #[command(flatten)]
    pub(crate) pipeline: PipelineArguments,
    /// Engine of this process.
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// Random crops and flips of the training images.
    #[arg(long, value_enum, default_value_t = Augment::None)]
    pub(crate) augment: Augment,
    /// What to do about an image that cannot be read.
    #[arg(long, value_enum, default_value_t = Corrupt::Skip)]
    pub(crate) corrupt: Corrupt,
    /// Seed of weights, order, augmentation and dropout.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Save checkpoints in this folder: at the end, on Ctrl-C, and every `--checkpoint-every` steps.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Steps between checkpoints.
    #[arg(long, value_name = "N", requires = "checkpoint", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) checkpoint_every: Option<u64>,
    /// Continue from the newest checkpoint in this folder, on any number of devices.
    #[arg(long, value_name = "DIR")]
    pub(crate) resume: Option<PathBuf>,
    /// Write a Chrome/Perfetto trace: one track a device, one slice an action, links too.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Where to keep measured profiles.
    #[command(flatten)]
    pub(crate) cache: CacheArguments,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `outboard bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Time the forward and the backward pass of a whole model.
    Step(BenchStep),
    /// Time every convolution of a model and its gradients, a line a shape.
    Ops(BenchOps),
}

/// `outboard bench step`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  outboard bench step --model resnet34 --batch 8 --image-size 224 --threads 1
  outboard bench step --model resnet34 --batch 32 --inference --json
  outboard bench step --conv direct                          convolutions without Winograd's filtering")]
pub(crate) struct BenchStep {
    /// What to time.
    #[command(flatten)]
    pub(crate) work: BenchWork,
    /// Only the forward pass, in evaluation mode.
    #[arg(long)]
    pub(crate) inference: bool,
    /// Steps timed, after one that is not.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repetitions: u32,
}

/// `outboard bench ops`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  outboard bench ops --model resnet50 --batch 8 --threads 1")]
pub(crate) struct BenchOps {
    /// What to time.
    #[command(flatten)]
    pub(crate) work: BenchWork,
}

/// What is timed.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchWork {
    /// `mlp`, `resnet18`, `resnet34`, `resnet50`, `vgg11_bn` or `vit_tiny`, with 1000 classes.
    #[arg(long, value_name = "NAME", default_value = "resnet34")]
    pub(crate) model: String,
    /// Images a step.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch: u32,
    /// Side of the square colour images.
    #[arg(long, value_name = "N", default_value_t = 224, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) image_size: u32,
    /// Engine settings.
    #[command(flatten)]
    pub(crate) engine: EngineArguments,
    /// One JSON object a line on standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Model, data and batch.
#[derive(Clone, Debug, Args)]
pub(crate) struct WorkArguments {
    /// `mlp`, `resnet18`, `resnet34`, `resnet50`, `vgg11_bn`, `vit_tiny`, or the path of a bundle (`.safetensors`).
    pub(crate) model: String,
    /// `builtin`, `fashion-mnist:DIR`, `mnist:DIR`, `cifar10:DIR`, `images:DIR` (one folder a class), or
    /// `noise:3x224` (made up, to measure speed).
    #[arg(long, value_name = "SPEC", default_value = "builtin")]
    pub(crate) data: String,
    /// Side of the square images that the model sees; the data's own size, but at least 32, unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) image_size: Option<u32>,
    /// Images a step.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub(crate) batch: u32,
}

/// Optimizer settings, named as in `torch.optim`.
#[derive(Clone, Debug, Args)]
pub(crate) struct OptimizerArguments {
    /// Which.
    #[arg(long, value_enum, default_value_t = OptimizerName::Sgd)]
    pub(crate) optimizer: OptimizerName,
    /// Learning rate; 0.005 for sgd and 0.001 for adam and adamw unless given.
    #[arg(long, value_name = "X")]
    pub(crate) lr: Option<f64>,
    /// Momentum (sgd).
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    pub(crate) momentum: f64,
    /// Dampening of momentum (sgd).
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) dampening: f64,
    /// Nesterov momentum (sgd).
    #[arg(long)]
    pub(crate) nesterov: bool,
    /// Weight decay; 0 for sgd and adam, 0.01 for adamw unless given.
    #[arg(long, value_name = "X")]
    pub(crate) weight_decay: Option<f64>,
    /// Decay rates of the averages (adam, adamw).
    #[arg(long, value_name = "X,X", default_value = "0.9,0.999")]
    pub(crate) betas: String,
    /// Added to the denominator (adam, adamw).
    #[arg(long, value_name = "X", default_value_t = 1e-8)]
    pub(crate) eps: f64,
    /// Use the maximum of all second moments (adam, adamw).
    #[arg(long)]
    pub(crate) amsgrad: bool,
    /// `constant`, `step:STEPS:FACTOR` or `cosine:STEPS`, with `warmup:STEPS,` before any of them. Unless given, a cosine to
    /// 0 over all steps of the run.
    #[arg(long, value_name = "SCHEDULE")]
    pub(crate) lr_schedule: Option<String>,
    /// Clip gradients by their global norm over all stages.
    #[arg(long, value_name = "X")]
    pub(crate) clip_norm: Option<f64>,
}

/// Devices.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArguments {
    /// Start N worker processes on this computer.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub(crate) workers: u16,
    /// A worker's address, as `outboard worker` prints it; may be repeated.
    #[arg(long = "device", value_name = "tcp://HOST:PORT")]
    pub(crate) devices: Vec<String>,
    /// How long to wait for a device that does not answer.
    #[arg(long, value_name = "SECONDS", default_value = "4", value_parser = seconds)]
    pub(crate) worker_timeout: Duration,
}

/// Cuts and schedules.
#[derive(Clone, Debug, Args)]
pub(crate) struct PipelineArguments {
    /// Micro-batches a step, or `auto`: then the plan chooses, and batch norm's statistics depend on its choice.
    #[arg(long, value_name = "N|auto", default_value = "4")]
    pub(crate) micro_batches: String,
    /// `gpipe`, `1f1b`, `hybrid`, `zb-h1`, `interleaved` or `auto`.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub(crate) schedule: String,
    /// Where to cut: `auto`, or the numbers of the nodes that begin stages 1, 2, ...
    #[arg(long, value_name = "auto|N,..", default_value = "auto")]
    pub(crate) cut: String,
    /// `auto` leaves out a device that would slow the run down; `all` forbids that.
    #[arg(long = "use", value_enum, default_value_t = Use::Auto)]
    pub(crate) use_devices: Use,
    /// How tensors travel between stages; `f32` is exact.
    #[arg(long, value_enum, default_value_t = Wire::F32)]
    pub(crate) wire: Wire,
}

/// Engine of a device.
#[derive(Clone, Debug, Args)]
pub(crate) struct EngineArguments {
    /// Compute threads of each device that runs on this computer; the cores, shared out among them, unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory that stages may take on each device that runs on this computer; half of it, shared out, unless given.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// How to convolve: `auto` is up to three times as fast and gives errors of about 1e-6 instead of 2e-7.
    #[arg(long, value_enum, default_value_t = Conv::Auto)]
    pub(crate) conv: Conv,
}

/// `--conv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Conv {
    /// By Winograd's filtering where that is faster.
    Auto,
    /// Without it.
    Direct,
}

impl Conv {
    /// As it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Conv::Auto => "auto",
            Conv::Direct => "direct",
        }
    }
}

impl From<Conv> for Method {
    fn from(conv: Conv) -> Method {
        match conv {
            Conv::Auto => Method::Auto,
            Conv::Direct => Method::Direct,
        }
    }
}

/// Profiles on disk.
#[derive(Clone, Debug, Args)]
pub(crate) struct CacheArguments {
    /// Folder of measured profiles; the user's cache folder unless given.
    #[arg(long, value_name = "DIR", env = "OUTBOARD_CACHE")]
    pub(crate) cache: Option<PathBuf>,
}

/// `--augment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Augment {
    /// Images as they are.
    None,
    /// A crop out of the padded image, and a flip every other time.
    CropFlip,
}

/// `--corrupt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Corrupt {
    /// Name it, count it, go on without it.
    Skip,
    /// Name it and stop.
    Fail,
}

/// `--optimizer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OptimizerName {
    /// Stochastic gradient descent with momentum.
    Sgd,
    /// Adam.
    Adam,
    /// Adam with decoupled weight decay.
    Adamw,
}

/// `--use`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Use {
    /// The plan decides.
    Auto,
    /// Every device gets a stage.
    All,
}

/// `--wire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// Exact.
    F32,
    /// Half the bytes, 11 bits of precision, range to 65504.
    F16,
    /// Half the bytes, 8 bits of precision, full range.
    Bf16,
}

/// `4`, `0.5`: seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if !(0.1..=3600.0).contains(&value) {
        return Err(format!("{text} s is outside 0.1 to 3600 s"));
    }
    Ok(Duration::from_secs_f64(value))
}

/// `2GiB`, `1.5GB`, `800MiB`, `1000000`: bytes.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a size; try 2GiB"))?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1024.0 * 1024.0,
        "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("`{unit}` is not a unit; try KiB, MiB or GiB")),
    };
    let value = number * factor;
    if !(1.0..=1e15).contains(&value) {
        return Err(format!("{text} is outside what memory can be"));
    }
    Ok(value as u64)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("1.5MiB"), Ok(3 << 19));
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("3GB"), Ok(3_000_000_000));
        for wrong in ["", "GiB", "-1GiB", "1TiBs", "0", "1e400", "nan"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "nan", "inf", "4s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_whole_command_line_parses() {
        let line = "outboard train resnet34 --data fashion-mnist:/usr/share/datasets/fashion-mnist --image-size 32 --batch 32 \
                    --micro-batches 4 --steps 6 --seed 7 --json --use all --workers 3 --threads 2 --wire bf16 --schedule zb-h1";
        let Command::Train(train) = Cli::try_parse_from(line.split_whitespace())
            .unwrap()
            .command
        else {
            panic!("not train");
        };
        assert_eq!(
            (train.steps, train.devices.workers, train.engine.threads),
            (Some(6), 3, Some(2))
        );
        assert_eq!(
            (train.pipeline.use_devices, train.pipeline.wire),
            (Use::All, Wire::Bf16)
        );
    }
}
