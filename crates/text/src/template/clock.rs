//! `strftime_now`: the date in a prompt, from a clock that tests can set.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A calendar date and time of day, without a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DateTime {
    /// Year of the Gregorian calendar.
    pub year: i64,
    /// Month, 1 to 12.
    pub month: u32,
    /// Day of the month, 1 to 31.
    pub day: u32,
    /// Hour, 0 to 23.
    pub hour: u32,
    /// Minute, 0 to 59.
    pub minute: u32,
    /// Second, 0 to 59.
    pub second: u32,
    /// Microsecond, 0 to 999,999.
    pub microsecond: u32,
}

impl DateTime {
    /// The UTC date and time so many seconds after 1970-01-01. For a local time add its offset
    /// first.
    pub fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        let time = seconds.rem_euclid(86_400) as u32;
        let (year, month, day) = civil(days);
        Self {
            year,
            month,
            day,
            hour: time / 3600,
            minute: time / 60 % 60,
            second: time % 60,
            microsecond: 0,
        }
    }

    /// Days since 1970-01-01.
    fn days(&self) -> i64 {
        // Years run from March, so that the leap day is the last of its year.
        let year = self.year - i64::from(self.month <= 2);
        let era = year.div_euclid(400);
        let month = i64::from(self.month + 9) % 12;
        let of_year = (153 * month + 2) / 5 + i64::from(self.day) - 1;
        let of_era = year.rem_euclid(400) * 365;
        let leaps = year.rem_euclid(400) / 4 - year.rem_euclid(400) / 100;
        era * 146_097 + of_era + leaps + of_year - 719_468
    }

    /// 0 is Monday.
    fn weekday(&self) -> usize {
        (self.days() + 3).rem_euclid(7) as usize
    }

    /// 1 is the first of January.
    fn day_of_year(&self) -> i64 {
        self.days()
            - Self {
                month: 1,
                day: 1,
                ..*self
            }
            .days()
            + 1
    }
}

/// Year, month and day of a number of days since 1970-01-01 (Hinnant, "chrono-compatible
/// low-level date algorithms").
fn civil(days: i64) -> (i64, u32, u32) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (
        year + era * 400 + i64::from(month <= 2),
        month as u32,
        day as u32,
    )
}

/// Where `strftime_now` gets its time from.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> DateTime + Send + Sync>);

impl Clock {
    /// A clock that calls `now`.
    pub fn new(now: impl Fn() -> DateTime + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The system's clock in UTC.
    pub fn utc() -> Self {
        Self::new(|| {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let seconds = i64::try_from(since.as_secs()).unwrap_or(0);
            DateTime {
                microsecond: since.subsec_micros(),
                ..DateTime::from_unix(seconds)
            }
        })
    }

    /// A clock that stands still.
    pub fn fixed(at: DateTime) -> Self {
        Self::new(move || at)
    }

    /// The time now.
    pub fn now(&self) -> DateTime {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::utc()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// Python's `strftime` in the C locale, with glibc's `-` flag (`%-d` = no padding).
pub(super) fn format(at: &DateTime, format: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let Some(directive) = directive else {
            return Err(format!(
                "strftime format {format:?} ends in the middle of a directive"
            ));
        };
        match composite(directive) {
            Some(longer) => out.push_str(&self::format(at, longer)?),
            None => out
                .push_str(&field(at, directive, bare).ok_or_else(|| {
                    format!("strftime directive `%{directive}` is not supported")
                })?),
        }
    }
    Ok(out)
}

/// Directives that stand for several.
fn composite(directive: char) -> Option<&'static str> {
    Some(match directive {
        'c' => "%a %b %e %H:%M:%S %Y",
        'D' | 'x' => "%m/%d/%y",
        'F' => "%Y-%m-%d",
        'R' => "%H:%M",
        'r' => "%I:%M:%S %p",
        'T' | 'X' => "%H:%M:%S",
        _ => return None,
    })
}

fn field(at: &DateTime, directive: char, bare: bool) -> Option<String> {
    let padded = |value: i64, width: usize| {
        if bare {
            value.to_string()
        } else {
            format!("{value:0width$}")
        }
    };
    let month = *MONTHS.get(at.month.checked_sub(1)? as usize)?;
    let day = DAYS[at.weekday()];
    let hour12 = i64::from((at.hour + 11) % 12 + 1);
    Some(match directive {
        'Y' => at.year.to_string(),
        'y' => padded(at.year.rem_euclid(100), 2),
        'm' => padded(at.month.into(), 2),
        'B' => month.into(),
        'b' | 'h' => month[..3].into(),
        'd' => padded(at.day.into(), 2),
        'e' if bare => at.day.to_string(),
        'e' => format!("{:2}", at.day),
        'j' => padded(at.day_of_year(), 3),
        'A' => day.into(),
        'a' => day[..3].into(),
        'u' => (at.weekday() + 1).to_string(),
        'w' => ((at.weekday() + 1) % 7).to_string(),
        'H' => padded(at.hour.into(), 2),
        'I' => padded(hour12, 2),
        'p' => if at.hour < 12 { "AM" } else { "PM" }.into(),
        'M' => padded(at.minute.into(), 2),
        'S' => padded(at.second.into(), 2),
        'f' => format!("{:06}", at.microsecond),
        // A time without a zone has no name and no offset for it.
        'Z' | 'z' => String::new(),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of Python's `datetime.fromtimestamp(t, UTC).strftime(f)`.
    #[test]
    fn agrees_with_python() {
        let cases = [
            (
                0,
                "%Y-%m-%d %H:%M:%S %A %j %u %w",
                "1970-01-01 00:00:00 Thursday 001 4 4",
            ),
            (
                951_782_399,
                "%d %B %Y %I:%M %p",
                "28 February 2000 11:59 PM",
            ),
            (951_782_400, "%-d %b %y %-I %p", "29 Feb 00 12 AM"),
            (4_107_542_400, "%c", "Mon Mar  1 00:00:00 2100"),
            (1_719_835_445, "%x %X %e|%-m|%%", "07/01/24 12:04:05  1|7|%"),
            (1_735_646_400, "%F %j %a", "2024-12-31 366 Tue"),
            (-86_400, "%F", "1969-12-31"),
        ];
        for (at, form, expected) in cases {
            assert_eq!(
                format(&DateTime::from_unix(at), form).as_deref(),
                Ok(expected),
                "{form}"
            );
        }
    }

    #[test]
    fn days_and_dates_are_inverse() {
        for day in (-200_000..200_000).step_by(17) {
            assert_eq!(DateTime::from_unix(day * 86_400).days(), day);
        }
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let at = DateTime::from_unix(0);
        assert!(format(&at, "%Q").is_err());
        assert!(format(&at, "%").is_err());
        assert!(format(&at, "%-").is_err());
    }
}
