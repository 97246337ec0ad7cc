//! `strftime_now`: a moment written as a template asks. In English, as the C locale has it.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
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
const SECONDS_PER_DAY: i64 = 86_400;

/// Seconds since 1970 by the system's clock, UTC.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64)
}

/// The moment `seconds` after 1970 by `format`; `None` if that has a directive which is not known.
pub(super) fn strftime(format: &str, seconds: i64) -> Option<String> {
    let (days, second_of_day) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let weekday = (days + 4).rem_euclid(7); // 1970 began on a Thursday
    let day_of_year = days - days_before(year, 1, 1) + 1;
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next()?;
        let padded = directive != '-';
        if !padded {
            directive = chars.next()?;
        }
        let mut number = |value: i64, width: usize, fill: char| {
            let digits = value.to_string();
            let missing = if padded { width.saturating_sub(digits.len()) } else { 0 };
            out.extend(std::iter::repeat_n(fill, missing));
            out.push_str(&digits);
        };
        match directive {
            'Y' => number(year, 1, '0'),
            'y' => number(year.rem_euclid(100), 2, '0'),
            'm' => number(month, 2, '0'),
            'd' => number(day, 2, '0'),
            'e' => number(day, 2, ' '),
            'j' => number(day_of_year, 3, '0'),
            'H' => number(hour, 2, '0'),
            'I' => number(hour12, 2, '0'),
            'M' => number(minute, 2, '0'),
            'S' => number(second, 2, '0'),
            'w' => number(weekday, 1, '0'),
            'u' => number((weekday + 6) % 7 + 1, 1, '0'),
            's' => number(seconds, 1, '0'),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'A' => out.push_str(DAYS[weekday as usize]),
            'a' => out.push_str(&DAYS[weekday as usize][..3]),
            'B' => out.push_str(MONTHS[month as usize - 1]),
            'b' | 'h' => out.push_str(&MONTHS[month as usize - 1][..3]),
            'F' => write!(out, "{year}-{month:02}-{day:02}").ok()?,
            'T' => write!(out, "{hour:02}:{minute:02}:{second:02}").ok()?,
            'R' => write!(out, "{hour:02}:{minute:02}").ok()?,
            'D' => write!(out, "{month:02}/{day:02}/{:02}", year.rem_euclid(100)).ok()?,
            'z' | 'Z' => {} // as Python's naive datetime
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            _ => return None,
        }
    }
    Some(out)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March have their leap day at the end.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of the day `days` after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days.div_euclid(366);
    while days_before(year + 1, 1, 1) <= days {
        year += 1;
    }
    let month = (2..=12).take_while(|&month| days_before(year, month, 1) <= days).last().unwrap_or(1);
    (year, month, days - days_before(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_python_does() {
        let format = "%Y-%m-%d %H:%M:%S %y %e %-d %-m %j %I %p %A %a %B %b %w %u %F %T %R %D %% %s";
        let expected = [
            (
                0,
                "1970-01-01 00:00:00 70  1 1 1 001 12 AM Thursday Thu January Jan 4 4 1970-01-01 00:00:00 00:00 01/01/70 % 0",
            ),
            (
                951_827_696,
                "2000-02-29 12:34:56 00 29 29 2 060 12 PM Tuesday Tue February Feb 2 2 2000-02-29 12:34:56 12:34 02/29/00 % 951827696",
            ),
            (
                1_785_061_230,
                "2026-07-26 10:20:30 26 26 26 7 207 10 AM Sunday Sun July Jul 0 7 2026-07-26 10:20:30 10:20 07/26/26 % 1785061230",
            ),
            (
                4_102_444_799,
                "2099-12-31 23:59:59 99 31 31 12 365 11 PM Thursday Thu December Dec 4 4 2099-12-31 23:59:59 23:59 12/31/99 % 4102444799",
            ),
        ];
        for (seconds, text) in expected {
            assert_eq!(strftime(format, seconds).as_deref(), Some(text));
        }
        assert_eq!(strftime("%Q", 0), None);
        assert_eq!(strftime("%", 0), None);
        assert!(strftime("%Y %j %A", i64::from(i32::MIN) * 400).is_some());
    }
}
