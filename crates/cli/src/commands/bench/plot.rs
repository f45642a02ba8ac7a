//! Speed and hit rate against memory, as an SVG drawing.

use super::figures::Line;
use std::fmt::Write;

/// Size of the field that points stand in, and of the margins around it.
const FIELD: (f64, f64) = (520.0, 240.0);
const LEFT: f64 = 70.0;
const RIGHT: f64 = 70.0;
const ABOVE: f64 = 60.0;
const BELOW: f64 = 60.0;
const RATE: &str = "#1f6feb";
const HITS: &str = "#d1651f";
/// Intervals between ticks, at most.
const INTERVALS: f64 = 6.0;

/// A drawing with a field for each test and number of threads among `lines`.
pub(super) fn svg(model: &str, lines: &[Line]) -> String {
    let mut fields: Vec<(String, Vec<&Line>)> = Vec::new();
    for line in lines {
        let title = format!("{}, {} threads", line.test, line.threads);
        match fields.iter_mut().find(|field| field.0 == title) {
            Some((_, points)) => points.push(line),
            None => fields.push((title, vec![line])),
        }
    }
    let (width, height) = (LEFT + FIELD.0 + RIGHT, ABOVE + FIELD.1 + BELOW);
    let all = height * fields.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{all}\" \
         viewBox=\"0 0 {width} {all}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, (title, points)) in fields.iter_mut().enumerate() {
        points.sort_by_key(|line| line.memory);
        let top = height * index as f64 + ABOVE;
        let field = Field {
            memory: Axis::to(points.iter().map(|l| in_gib(l.memory)).fold(0.0, f64::max)),
            rate: Axis::to(points.iter().map(|l| l.mean).fold(0.0, f64::max)),
            hits: Axis::to(100.0),
            top,
        };
        field.draw(&format!("{model}: {title}"), points, &mut out);
    }
    out + "</svg>\n"
}

fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}

/// Percent of the uses of experts that found them in memory; all do where all are there.
fn hits(line: &Line) -> f64 {
    line.reads.map_or(100.0, |reads| reads.hit_rate * 100.0)
}

/// From 0 to the first round tick that is not below every value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    step: f64,
    ticks: u32,
}

impl Axis {
    fn to(most: f64) -> Axis {
        let most = if most > 0.0 && most.is_finite() {
            most
        } else {
            1.0
        };
        let power = 10f64.powf((most / INTERVALS).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
        let enough = steps.into_iter().find(|step| most / step <= INTERVALS);
        let step = enough.unwrap_or(10.0 * power);
        Axis {
            step,
            ticks: (most / step).ceil().max(1.0) as u32,
        }
    }

    /// Where `value` stands, from 0 to 1.
    fn place(self, value: f64) -> f64 {
        value / (self.step * f64::from(self.ticks))
    }

    /// Where ticks stand, and their words.
    fn marks(self) -> impl Iterator<Item = (f64, String)> {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        (0..=self.ticks).map(move |n| {
            let value = f64::from(n) * self.step;
            (self.place(value), format!("{value:.digits$}"))
        })
    }
}

/// Two series over one axis.
struct Field {
    memory: Axis,
    rate: Axis,
    hits: Axis,
    /// Upper edge in the drawing.
    top: f64,
}

impl Field {
    fn x(&self, place: f64) -> f64 {
        LEFT + place * FIELD.0
    }

    fn y(&self, place: f64) -> f64 {
        self.top + (1.0 - place) * FIELD.1
    }

    fn draw(&self, title: &str, points: &[&Line], out: &mut String) {
        text((LEFT, self.top - 36.0), "start", "black", title, out);
        self.axes(out);
        let rates = points.iter().map(|l| (l, self.rate.place(l.mean)));
        let rates: Vec<_> = rates.map(|(l, y)| (l.memory, y, told(l))).collect();
        self.series(RATE, &rates, out);
        let hits = points.iter().map(|l| (l, self.hits.place(hits(l))));
        let hits: Vec<_> = hits.map(|(l, y)| (l.memory, y, told(l))).collect();
        self.series(HITS, &hits, out);
        for (x, color, word) in [
            (0.0, RATE, "tok/s"),
            (0.15, HITS, "experts found in memory, %"),
        ] {
            let (x, y) = (self.x(x), self.top - 16.0);
            element(
                out,
                "circle",
                &format!(
                    "cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"",
                    x + 4.0
                ),
            );
            text((x + 12.0, y + 4.0), "start", color, word, out);
        }
    }

    fn axes(&self, out: &mut String) {
        let (left, right) = (self.x(0.0), self.x(1.0));
        let (above, below) = (self.y(1.0), self.y(0.0));
        let line = |out: &mut String, from: (f64, f64), to: (f64, f64), color: &str| {
            let [x, y, x2, y2] = [from.0, from.1, to.0, to.1].map(|n| format!("{n:.1}"));
            let ends = format!("x1=\"{x}\" y1=\"{y}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{color}\"");
            element(out, "line", &ends);
        };
        for (place, word) in self.memory.marks() {
            let x = self.x(place);
            line(out, (x, below), (x, below + 5.0), "black");
            text((x, below + 20.0), "middle", "black", &word, out);
        }
        for (place, word) in self.rate.marks() {
            let y = self.y(place);
            line(out, (left, y), (right, y), "#dddddd");
            text((left - 8.0, y + 4.0), "end", RATE, &word, out);
        }
        for (place, word) in self.hits.marks() {
            text(
                (right + 8.0, self.y(place) + 4.0),
                "start",
                HITS,
                &word,
                out,
            );
        }
        line(out, (left, below), (right, below), "black");
        line(out, (left, above), (left, below), "black");
        line(out, (right, above), (right, below), "black");
        let middle = (self.x(0.5), below + 40.0);
        text(middle, "middle", "black", "memory limit, GiB", out);
    }

    /// Points by memory, with what is told about each where one points at it.
    fn series(&self, color: &str, points: &[(u64, f64, String)], out: &mut String) {
        let at = |&(memory, place, _): &(u64, f64, String)| {
            let x = self.x(self.memory.place(in_gib(memory)));
            (format!("{x:.1}"), format!("{:.1}", self.y(place)))
        };
        let path: Vec<String> = points
            .iter()
            .map(at)
            .map(|(x, y)| format!("{x},{y}"))
            .collect();
        let path = path.join(" ");
        let style =
            format!("points=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"");
        element(out, "polyline", &style);
        for point in points {
            let (x, y) = at(point);
            let _ = writeln!(
                out,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"4\" fill=\"{color}\"><title>{}</title></circle>",
                escaped(&point.2)
            );
        }
    }
}

/// A measurement in words.
fn told(line: &Line) -> String {
    let (memory, rate) = (in_gib(line.memory), line.mean);
    format!(
        "{memory:.2} GiB: {rate:.2} tok/s, {:.1} % found in memory",
        hits(line)
    )
}

fn element(out: &mut String, name: &str, attributes: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "<{name} {attributes}/>");
}

fn text(at: (f64, f64), anchor: &str, color: &str, words: &str, out: &mut String) {
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{}</text>",
        at.0,
        at.1,
        escaped(words)
    );
}

/// As XML text.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_every_value() {
        for (most, step, ticks) in [
            (100.0, 20.0, 5),
            (6.0, 1.0, 6),
            (6.1, 2.0, 4),
            (0.37, 0.1, 4),
            (2.44, 0.5, 5),
            (0.0, 0.2, 5),
        ] {
            let axis = Axis::to(most);
            assert!((axis.step - step).abs() < 1e-12, "{most}: {axis:?}");
            assert_eq!(axis.ticks, ticks, "{most}");
            assert!(axis.place(most) <= 1.0 + 1e-12, "{most}");
        }
        let words: Vec<String> = Axis::to(2.44).marks().map(|mark| mark.1).collect();
        assert_eq!(words, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(escaped("<a & b>"), "&lt;a &amp; b&gt;");
    }
}
