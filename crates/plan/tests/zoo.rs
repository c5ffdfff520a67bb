//! Plans of real models on synthetic profiles.

use std::collections::BTreeSet;

use outboard_graph::{Graph, zoo};
use outboard_plan::{
    Device, DeviceKey, DeviceProfile, LinkProfile, MicroBatches, OpSignature, Plan, PlanError, SearchOptions,
    UseDevices, micro_batch_sizes, search, signatures,
};
use outboard_schedule::ScheduleKind;

fn model(name: &str) -> Graph {
    let options = zoo::ZooOptions { image_size: 32, classes: 10, ..zoo::ZooOptions::default() };
    zoo::build(name, &options).unwrap()
}

/// A device that takes a microsecond for every program, and a nanosecond more for every byte of its text: arbitrary, but
/// different for different work and the same each time.
fn device(name: &str, slowness: f64, wanted: &BTreeSet<OpSignature>, link: Option<f64>) -> Device {
    let key = DeviceKey { device_id: name.into(), build: "1".into(), engine: "cpu".into(), threads: 1 };
    let mut profile = DeviceProfile::new(key, 8 << 30);
    for signature in wanted {
        let heavy = ["convolution", "addmm", "mm", "bmm"].iter().any(|op| signature.0.contains(op));
        let seconds = if heavy { 1e-3 } else { 1e-4 } + 1e-9 * signature.0.len() as f64;
        profile.record(signature.clone(), Some(seconds * slowness));
    }
    let link = link.map(|bytes_per_second| LinkProfile {
        up_bytes_per_second: bytes_per_second,
        down_bytes_per_second: bytes_per_second,
        latency_seconds: 1e-4,
        device_seconds_per_byte: 1e-10,
    });
    Device { name: name.into(), profile, link }
}

fn devices(graph: &Graph, options: &SearchOptions) -> Vec<Device> {
    let sizes = micro_batch_sizes(options, graph.min_batch()).unwrap();
    let wanted = signatures(graph, &sizes).unwrap();
    vec![
        device("host", 1.0, &wanted, None),
        device("laptop", 0.7, &wanted, Some(1e9)),
        device("phone", 1.5, &wanted, Some(3e7)),
    ]
}

fn plan(graph: &Graph, devices: &[Device], options: &SearchOptions) -> Plan {
    search(graph, devices, options).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_model_of_the_zoo() {
    for name in zoo::NAMES {
        let graph = model(name);
        let options = SearchOptions { use_devices: UseDevices::All, ..SearchOptions::new(30) };
        let devices = devices(&graph, &options);
        let plan = plan(&graph, &devices, &options);
        assert_eq!(plan.stages.len(), 3, "{name}");
        assert_eq!(plan.micro_batch_sizes, [8, 8, 7, 7]);
        let mut next = 0;
        for stage in &plan.stages {
            assert_eq!(stage.nodes.start, next);
            next = stage.nodes.end;
            assert!(stage.memory.total() > 0 && stage.seconds[0] > 0.0);
        }
        assert_eq!(next, graph.nodes.len());
        let parameters: u64 = plan.stages.iter().map(|stage| stage.parameters).sum();
        let whole: u64 = (graph.inputs.iter())
            .filter(|input| input.kind == outboard_graph::InputKind::Parameter)
            .map(|input| graph.ty(input.value).unwrap().elements(1).unwrap())
            .sum();
        assert_eq!(parameters, whole, "{name}");
    }
}
