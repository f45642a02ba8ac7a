//! Which machine should hold which layers.
//!
//! Every contiguous range is planned for every kind of machine by the sums of opening; then the
//! ranges and their order are chosen that decode a token soonest or, for several conversations at a
//! time, whose slowest machine is soonest done.

use super::search::{Held, Search};
use super::{Machine, Plan, Question, predict};
use crate::error::Error;
use crate::options::Options;
use lamella_container::{Outline, Stored, human_bytes};
use lamella_program::Part;
use serde::Serialize;
use std::collections::HashMap;

/// Most machines of a chain.
pub const MOST_MACHINES: usize = 8;

/// A machine of a chain.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it offers.
    pub machine: Machine,
    /// Bytes per second of its link to the others.
    pub link: f64,
    /// Seconds that a message takes beside its bytes.
    pub latency: f64,
}

/// One machine's part.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stage {
    /// The machine.
    pub name: String,
    /// Its layers, from the first to behind the last; the same twice for none.
    pub layers: [usize; 2],
    /// Whether it holds embedding and head.
    pub ends: bool,
    /// Most bytes of memory it takes.
    pub peak_bytes: u64,
    /// Bytes it has.
    pub memory_bytes: u64,
    /// Experts in memory at once; 0 where all are, or none.
    pub slots: u32,
    /// Seconds of a decoded token.
    pub seconds: f64,
    /// Bytes it sends for every token.
    pub sent_bytes_per_token: u64,
}

/// Who holds what.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Chain {
    /// In the order of their layers; machines without any come last.
    pub stages: Vec<Stage>,
    /// Seconds of a decoded token of one conversation: all stages and links.
    pub token_seconds: f64,
    /// Tokens per second of one conversation.
    pub decode: f64,
    /// Tokens per second of so many conversations that every machine is busy.
    pub busy_decode: f64,
    /// Bytes over all links for every token.
    pub wire_bytes_per_token: u64,
    /// What was made small: `token` or `slowest`.
    pub goal: &'static str,
}

/// What a range costs on a machine.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    peak: u64,
    slots: u32,
}

impl Chain {
    /// Chooses for `nodes`, the first of which holds the ends: it is the one that is spoken to.
    ///
    /// # Errors
    /// [`Error::Setting`] for no machine or too many; [`Error::Memory`] if they hold no chain.
    pub fn of(stored: &impl Stored, question: &Question, nodes: &[Node]) -> Result<Chain, Error> {
        if nodes.is_empty() || nodes.len() > MOST_MACHINES {
            return Err(Error::Setting {
                name: "machines",
                message: format!("there must be 1 to {MOST_MACHINES}, not {}", nodes.len()),
            });
        }
        let stored = &Outline::of(stored).without_parts();
        let layers = stored.program().layers.len();
        let row = (stored.program().row_width() as u64).saturating_mul(4);
        let ends = ends(stored, question, &nodes[0])?;
        let mut costs = Costs {
            stored,
            question,
            ends: ends.as_ref().map_or(0, |cost| cost.peak),
            known: HashMap::new(),
        };
        let mut search = Search {
            nodes,
            layers,
            row: row as f64,
            table: vec![Vec::new(); nodes.len()],
            slowest: question.sessions > 1,
            ends: ends.as_ref().map_or(0.0, |cost| cost.seconds),
        };
        for (number, node) in nodes.iter().enumerate() {
            search.table[number] = costs.of(number == 0, node)?;
        }
        let found = ends.and_then(|ends| Some((ends, search.best()?)));
        let Some((ends, ranges)) = found else {
            return Err(refusal(stored, question, nodes)?);
        };
        Ok(search.chain(&ranges, ends, row))
    }
}

/// What embedding and head cost the machine that holds them; `None` if it has no room.
fn ends(stored: &impl Stored, question: &Question, node: &Node) -> Result<Option<Cost>, Error> {
    let plan = plan_part(stored, question, &node.machine, Part::Ends, 0)?;
    Ok(cost(&plan))
}

fn cost(plan: &Plan) -> Option<Cost> {
    plan.placement.fits.then(|| Cost {
        seconds: 1.0 / plan.predicted.cold.decode.expected,
        peak: plan.placement.peak_bytes,
        slots: plan.placement.slots,
    })
}

fn plan_part(
    stored: &impl Stored,
    question: &Question,
    machine: &Machine,
    part: Part,
    reserved: u64,
) -> Result<Plan, Error> {
    let options = Options {
        part,
        memory_limit: Some(machine.memory_bytes),
        threads: Some(machine.threads),
        reserved,
        isa: None,
        ..question.options.clone()
    };
    let question = Question {
        options,
        ..question.clone()
    };
    predict(stored, &question, machine)
}

/// Costs of all ranges, for machines that are alike once.
struct Costs<'a, S> {
    stored: &'a S,
    question: &'a Question,
    /// Bytes of the ends, on the machine that holds them.
    ends: u64,
    known: HashMap<String, Vec<Option<Cost>>>,
}

impl<S: Stored> Costs<'_, S> {
    /// Of the range from `a` to `b`, at `a * (layers + 1) + b`.
    fn of(&mut self, has_ends: bool, node: &Node) -> Result<Vec<Option<Cost>>, Error> {
        let machine = &node.machine;
        let rates = [&machine.memory, &machine.decode, &machine.disk];
        let rates = rates.map(|rate| rate.per_second);
        let kind = format!(
            "{has_ends} {} {} {rates:?}",
            machine.memory_bytes, machine.threads
        );
        if let Some(known) = self.known.get(&kind) {
            return Ok(known.clone());
        }
        let layers = self.stored.program().layers.len();
        let mut costs = vec![None; (layers + 1) * (layers + 1)];
        let reserved = match has_ends {
            true => self.ends,
            false => 0,
        };
        for a in 0..layers {
            for b in a + 1..=layers {
                let part = Part::Layers(a..b);
                let plan = plan_part(self.stored, self.question, machine, part, reserved)?;
                costs[a * (layers + 1) + b] = cost(&plan);
                // What does not fit fits no better with one more layer.
                if !plan.placement.fits {
                    break;
                }
            }
        }
        self.known.insert(kind, costs.clone());
        Ok(costs)
    }
}

impl Search<'_> {
    fn chain(&self, held: &[Held], ends: Cost, row: u64) -> Chain {
        let mut stages: Vec<Stage> = held.iter().map(|&held| self.stage(held, ends)).collect();
        let idle = (0..self.nodes.len()).filter(|n| held.iter().all(|(node, ..)| node != n));
        stages.extend(idle.map(|node| self.stage((node, self.layers, self.layers), ends)));
        let (mut hops, mut wire) = (0.0, 0);
        let mut at = 0;
        for to in held.iter().map(|(node, ..)| *node).chain([0]) {
            hops += self.hop(at, to);
            if at != to {
                wire += row;
                let sender = &self.nodes[at].name;
                if let Some(stage) = stages.iter_mut().find(|s| s.name == *sender) {
                    stage.sent_bytes_per_token += row;
                }
            }
            at = to;
        }
        let seconds: f64 = stages.iter().map(|stage| stage.seconds).sum();
        let slowest = stages.iter().map(|stage| stage.seconds).fold(0.0, f64::max);
        Chain {
            token_seconds: seconds + hops,
            decode: 1.0 / (seconds + hops),
            busy_decode: 1.0 / slowest,
            wire_bytes_per_token: wire,
            goal: match self.slowest {
                true => "slowest",
                false => "token",
            },
            stages,
        }
    }

    fn stage(&self, (node, a, b): Held, ends: Cost) -> Stage {
        let cost = self.cost(node, a, b);
        let has_ends = node == 0;
        let own = |value: f64| if has_ends { value } else { 0.0 };
        Stage {
            name: self.nodes[node].name.clone(),
            layers: [a, b],
            ends: has_ends,
            // What it reserves for the ends is in it.
            peak_bytes: match cost {
                Some(cost) => cost.peak,
                None if has_ends => ends.peak,
                None => 0,
            },
            memory_bytes: self.nodes[node].machine.memory_bytes,
            slots: cost.map_or(0, |cost| cost.slots),
            seconds: cost.map_or(0.0, |cost| cost.seconds) + own(ends.seconds),
            sent_bytes_per_token: 0,
        }
    }
}

/// The sum that does not fit: the least of the whole model beside what there is.
fn refusal(stored: &impl Stored, question: &Question, nodes: &[Node]) -> Result<Error, Error> {
    let machine = &nodes[0].machine;
    let whole = plan_part(stored, question, machine, Part::Whole, 0)?;
    let need = whole.placement.least_for_sessions_bytes;
    let there = nodes.iter().map(|node| node.machine.memory_bytes);
    let limit = there.fold(0u64, u64::saturating_add);
    let each: Vec<String> = nodes
        .iter()
        .map(|node| format!("{} {}", node.name, human_bytes(node.machine.memory_bytes)))
        .collect();
    Ok(Error::Memory {
        sum: format!(
            "the layers find no place on these machines ({}); on one machine the model with {} \
             conversations takes at least {need} bytes ({})",
            each.join(", "),
            question.sessions,
            human_bytes(need)
        ),
        limit,
        origin: "all of them together".to_owned(),
        advice: "Give the first machine room for embedding and head, take a shorter context or \
                 fewer conversations, or add machines"
            .to_owned(),
    })
}
