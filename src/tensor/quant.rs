//! Quantized weights: groups of 32 along the inputs, in panels of eight rows.
//!
//! A matrix `[rows][inputs]` is cut into panels of [`PANEL_ROWS`] rows, the last filled up with zeros, and a panel into groups
//! of [`GROUP`] inputs, the last filled up with zeros. A group of a panel holds the eight rows' scales, as F16, and then their
//! codes in the order in which a register of 32 bytes multiplies them: four of row 0, four of row 1, … A weight is its row's
//! scale times its code.
//!
//! | | bytes of a group | code k of row r |
//! |---|---|---|
//! | INT8 | 16 + 256 | the i8 at 16 + 32·(k / 4) + 4·r + k mod 4 |
//! | INT4 | 16 + 128 | half of the byte at 16 + 32·(k / 8) + 4·r + k mod 4, the lower one if k mod 8 < 4, less 8 |
//! | INT4_ASYMMETRIC | 16 + 128 + 8 | as INT4, less the row's zero, the u8 at 144 + r, instead of 8 |

use super::DType;

/// Inputs that share a scale.
pub const GROUP: usize = 32;
/// Rows of a panel.
pub const PANEL_ROWS: usize = 8;
/// Bytes of the scales of a group of a panel.
pub const SCALE_BYTES: usize = PANEL_ROWS * 2;
/// The version of this layout, in saved files.
pub const LAYOUT_VERSION: u32 = 1;

/// Where the zeros of a group of [`Quant::Int4Asymmetric`] begin: behind its scales and codes.
pub const ZEROS_AT: usize = Quant::Int4.group_bytes();

const _: () = assert!(Quant::Int8.group_bytes() == 272 && Quant::Int4.group_bytes() == 144);
const _: () = assert!(Quant::Int4Asymmetric.group_bytes() == 152 && ZEROS_AT == 144);

/// A format of quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quant {
    /// 8.5 bits for each weight.
    Int8,
    /// 4.5 bits for each weight.
    Int4,
    /// 4.75 bits for each weight: what files quantized by others need. Quantizing to it gives INT4 with zeros of 8.
    Int4Asymmetric,
}

impl Quant {
    /// Every format, in the order of the kernel tables.
    pub const ALL: [Quant; 3] = [Quant::Int8, Quant::Int4, Quant::Int4Asymmetric];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Quant::Int8 => "INT8",
            Quant::Int4 => "INT4",
            Quant::Int4Asymmetric => "INT4_ASYMMETRIC",
        }
    }

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Quant::Int8 => 8,
            Quant::Int4 | Quant::Int4Asymmetric => 4,
        }
    }

    /// Bytes of a group of a panel.
    pub const fn group_bytes(self) -> usize {
        match self {
            Quant::Int8 => SCALE_BYTES + PANEL_ROWS * GROUP,
            Quant::Int4 => SCALE_BYTES + PANEL_ROWS * GROUP / 2,
            Quant::Int4Asymmetric => Quant::Int4.group_bytes() + PANEL_ROWS,
        }
    }

    /// Bytes of a panel of rows of `inputs`; `None` if they exceed the address space.
    pub fn panel_bytes(self, inputs: usize) -> Option<usize> {
        inputs.div_ceil(GROUP).checked_mul(self.group_bytes())
    }

    /// Puts the codes `[PANEL_ROWS][GROUP]` of a group where they belong in `group`. Zeros become 8.
    pub fn place(self, codes: &[[i8; GROUP]; PANEL_ROWS], group: &mut [u8]) {
        for (r, codes) in codes.iter().enumerate() {
            let codes = codes.map(|code| code as u8);
            let fours = codes.as_chunks::<4>().0;
            let place = |i: usize| SCALE_BYTES + i * 32 + r * 4..SCALE_BYTES + i * 32 + r * 4 + 4;
            match self {
                Quant::Int8 => (0..GROUP / 4).for_each(|i| group[place(i)].copy_from_slice(&fours[i])),
                Quant::Int4 | Quant::Int4Asymmetric => (0..GROUP / 8).for_each(|i| {
                    let half = |four: [u8; 4]| u32::from_le_bytes(four.map(|code| code.wrapping_add(8)));
                    let both = half(fours[2 * i]) | half(fours[2 * i + 1]) << 4;
                    group[place(i)].copy_from_slice(&both.to_le_bytes());
                }),
            }
        }
        if self == Quant::Int4Asymmetric {
            group[ZEROS_AT..].fill(8);
        }
    }

    /// Code `k` of row `r` of a group.
    fn code(self, group: &[u8], r: usize, k: usize) -> i16 {
        let half = || {
            let byte = group[SCALE_BYTES + k / 8 * 32 + r * 4 + k % 4];
            i16::from(if k % 8 < 4 { byte & 15 } else { byte >> 4 })
        };
        match self {
            Quant::Int8 => i16::from(group[SCALE_BYTES + k / 4 * 32 + r * 4 + k % 4] as i8),
            Quant::Int4 => half() - 8,
            Quant::Int4Asymmetric => half() - i16::from(group[ZEROS_AT + r]),
        }
    }

    /// The weights of row `r` of a panel as f32.
    ///
    /// # Panics
    /// If `panel` has not the bytes of a panel of rows of `out.len()`.
    pub fn decode_row(self, panel: &[u8], r: usize, out: &mut [f32]) {
        assert_eq!(Some(panel.len()), self.panel_bytes(out.len()), "decode_row: panel");
        for (group, out) in panel.chunks_exact(self.group_bytes()).zip(out.chunks_mut(GROUP)) {
            let scale = DType::F16.decode(&group[r * 2..]);
            out.iter_mut().enumerate().for_each(|(k, out)| *out = scale * f32::from(self.code(group, r, k)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_place() {
        for quant in Quant::ALL {
            let codes: [[i8; GROUP]; PANEL_ROWS] =
                std::array::from_fn(|r| std::array::from_fn(|k| ((r * 37 + k * 11) % 16) as i8 - 8));
            let mut group = vec![0xffu8; quant.group_bytes()];
            quant.place(&codes, &mut group);
            for (r, scale) in group[..SCALE_BYTES].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *scale = half::f16::from_f32(0.5 * (r + 1) as f32).to_le_bytes();
            }
            for (r, codes) in codes.iter().enumerate() {
                let mut row = [0.0; GROUP];
                quant.decode_row(&group, r, &mut row);
                let expected = codes.map(|code| f32::from(code) * 0.5 * (r + 1) as f32);
                assert_eq!(row, expected, "{} row {r}", quant.name());
            }
        }
    }

    #[test]
    fn zeros_are_those_of_their_rows() {
        let quant = Quant::Int4Asymmetric;
        let mut group = vec![0; quant.group_bytes()];
        quant.place(&std::array::from_fn(|r| [r as i8 - 4; GROUP]), &mut group);
        group[..SCALE_BYTES].as_chunks_mut::<2>().0.fill(half::f16::ONE.to_le_bytes());
        let zeros = [0, 1, 7, 8, 15, 16, 200, 255];
        group[ZEROS_AT..].copy_from_slice(&zeros);
        for (r, zero) in zeros.into_iter().enumerate() {
            let mut row = [0.0; GROUP];
            quant.decode_row(&group, r, &mut row);
            assert_eq!(row, [r as f32 + 4.0 - f32::from(zero); GROUP], "row {r}");
        }
    }

    #[test]
    fn extreme_codes_are_kept() {
        let codes = [
            [-128i8; GROUP],
            [127; GROUP],
            [-127; GROUP],
            [0; GROUP],
            [1; GROUP],
            [-1; GROUP],
            [7; GROUP],
            [-8; GROUP],
        ];
        let mut group = vec![0; Quant::Int8.group_bytes()];
        Quant::Int8.place(&codes, &mut group);
        for (r, codes) in codes.iter().enumerate() {
            (0..GROUP).for_each(|k| assert_eq!(Quant::Int8.code(&group, r, k), i16::from(codes[k])));
        }
    }
}
