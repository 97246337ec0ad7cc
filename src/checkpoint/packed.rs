//! Matrices of 4 bits as GPTQ and AWQ store them, read panel by panel.
//!
//! A matrix `[rows][inputs]` is four tensors: codes q, and for each group of inputs and each row a zero z and a scale s, and
//! perhaps the group of each input. A weight is (q − z) · s.
//!
//! | | `qweight`, I32 | `qzeros`, I32 `[groups][rows / 8]` | `scales` `[groups][rows]` | `g_idx`, I32 `[inputs]` |
//! |---|---|---|---|---|
//! | GPTQ | `[inputs / 8][rows]`: eight inputs, the first lowest | eight rows, the first lowest | F16 | the group |
//! | AWQ | `[inputs][rows / 8]`: the rows 0 2 4 6 1 3 5 7 from the lowest on | the same order | F16 | is not there |
//!
//! GPTQ's `checkpoint_format` "gptq" stores a word of zeros less 0x11111111, borrows between the eight included: so do the
//! programs that write zeros of 0, and only adding it back as a whole finds them again.

use super::safetensors::Tensor;
use super::storage::Storage;
use super::{Method, Quantization};
use crate::error::Result;
use crate::memory;
use crate::tensor::Quant;
use crate::tensor::quant::{GROUP, PANEL_ROWS, SCALE_BYTES, ZEROS_AT};
use crate::{bail, err};
use half::f16;
use std::ops::Range;
use std::sync::Arc;

/// In place of an input where a panel has none: groups of the file are filled up to groups of a panel.
pub const GAP: u32 = u32::MAX;

/// Codes in a word.
pub(super) const PER_WORD: usize = 8;
/// One in each of them.
const ONES: u32 = 0x1111_1111;
/// Which four bits of a word of AWQ have row r of eight.
const AWQ_PLACE: [u32; PANEL_ROWS] = [0, 4, 1, 5, 2, 6, 3, 7];

const _: () = assert!(PER_WORD == PANEL_ROWS); // a word of zeros is that of a panel

/// Rows of 32-bit words of a file.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) name: Arc<str>,
    pub(super) storage: Arc<Storage>,
    pub(super) extent: Range<usize>,
    /// Words of a row.
    pub(super) width: usize,
}

impl Words {
    fn row(&self, row: usize) -> &[[u8; 4]] {
        let all = self.storage.bytes()[self.extent.clone()].as_chunks::<4>().0;
        &all[row * self.width..(row + 1) * self.width]
    }

    /// All words of all rows.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        self.storage.bytes()[self.extent.clone()].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word))
    }
}

/// A matrix of a GPTQ or AWQ checkpoint.
#[derive(Debug)]
pub struct PackedMatrix {
    name: String,
    shape: [usize; 2],
    method: Method,
    codes: Words,
    zeros: Words,
    scales: Tensor,
    /// The input at each place of a panel, or [`GAP`]; `None` = as they are numbered.
    order: Option<Vec<u32>>,
    /// Which group of the file each group of a panel belongs to.
    groups: Vec<u32>,
}

/// The tensors of a matrix, of the shapes that [`PackedMatrix::shapes`] asks for.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) codes: Words,
    pub(super) zeros: Words,
    pub(super) scales: Tensor,
    pub(super) g_idx: Option<Words>,
}

/// The shapes of a matrix's tensors.
#[derive(Debug)]
pub(super) struct Shapes {
    pub(super) codes: [usize; 2],
    pub(super) zeros: [usize; 2],
    pub(super) scales: [usize; 2],
}

impl PackedMatrix {
    /// The shapes of the tensors of a matrix `[rows][inputs]`; an error if it cannot be packed.
    pub(super) fn shapes(name: &str, [rows, inputs]: [usize; 2], quantization: &Quantization) -> Result<Shapes> {
        let method = quantization.method;
        let packed = if matches!(method, Method::Gptq { .. }) { inputs } else { rows };
        if !rows.is_multiple_of(PER_WORD) || !packed.is_multiple_of(PER_WORD) {
            let method = method.name();
            bail!(
                Tensor,
                "{name}: [{rows}, {inputs}] has no whole words of {PER_WORD} codes, so {method} cannot store it"
            );
        }
        let groups = quantization.group_size.map_or(1, |size| inputs.div_ceil(size));
        let codes = match method {
            Method::Gptq { .. } => [inputs / PER_WORD, rows],
            Method::Awq => [inputs, rows / PER_WORD],
        };
        Ok(Shapes { codes, zeros: [groups, rows / PER_WORD], scales: [groups, rows] })
    }

    /// The matrix `name` of these tensors.
    pub(super) fn new(
        name: String,
        shape: [usize; 2],
        quantization: &Quantization,
        parts: Parts,
    ) -> Result<PackedMatrix> {
        let Parts { codes, zeros, scales, g_idx } = parts;
        let (inputs, groups) = (shape[1], scales.shape()[0]);
        let group_size = quantization.group_size.unwrap_or(inputs);
        let group_of: Vec<u32> = match &g_idx {
            Some(g_idx) => memory::collected(g_idx.all())?,
            None => memory::collected((0..inputs).map(|input| (input / group_size) as u32))?,
        };
        if let Some(at) = group_of.iter().position(|&group| group as usize >= groups) {
            let (name, group) = (g_idx.map_or(name, |g_idx| g_idx.name.to_string()), group_of[at] as i32);
            bail!(Tensor, "{name}[{at}]: expected one of {groups} groups, found {group}");
        }
        let (order, groups) = arrange(&group_of, groups)?;
        Ok(PackedMatrix { name, shape, method: quantization.method, codes, zeros, scales, order, groups })
    }

    /// The name that the matrix would have if it were not quantized.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Rows and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The input at each place of a panel, or [`GAP`]; `None` = as they are numbered.
    pub fn order(&self) -> Option<&[u32]> {
        self.order.as_deref()
    }

    /// The format that holds the matrix exactly.
    pub fn quant(&self) -> Quant {
        match self.zeros.all().all(|word| self.restored(word) == 8 * ONES) {
            true => Quant::Int4,
            false => Quant::Int4Asymmetric,
        }
    }

    /// A word of zeros as it was meant.
    fn restored(&self, word: u32) -> u32 {
        let less_one = self.method == Method::Gptq { zeros_less_one: true };
        if less_one { word.wrapping_add(ONES) } else { word }
    }

    /// Writes panel `panel` in the format [`quant`](Self::quant). Returns whether that is possible: each scale must be a finite
    /// F16.
    pub fn write_panel(&self, quant: Quant, panel: usize, out: &mut [u8]) -> bool {
        let mut good = true;
        for (at, out) in out.chunks_exact_mut(quant.group_bytes()).enumerate() {
            quant.place(&self.codes(panel, at), out);
            let group = self.groups[at] as usize;
            for (r, out) in out[..SCALE_BYTES].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let scale = self.scale(group, panel * PANEL_ROWS + r);
                good &= scale.is_some();
                *out = scale.unwrap_or_default().to_le_bytes();
            }
            if quant == Quant::Int4Asymmetric {
                let zeros = self.restored(u32::from_le_bytes(self.zeros.row(group)[panel]));
                let zero = |r: usize| (zeros >> (4 * self.place_of_row(r)) & 15) as u8;
                out[ZEROS_AT..].iter_mut().enumerate().for_each(|(r, out)| *out = zero(r));
            }
        }
        good
    }

    /// The codes of a group of a panel, less 8.
    fn codes(&self, panel: usize, at: usize) -> [[i8; GROUP]; PANEL_ROWS] {
        let mut codes = [[0; GROUP]; PANEL_ROWS];
        let inputs = self.shape[1];
        for k in 0..GROUP {
            let place = at * GROUP + k;
            let input = self.order.as_ref().map_or(place, |order| order.get(place).map_or(inputs, |&i| i as usize));
            if input >= inputs {
                continue; // a gap
            }
            let words = match self.method {
                Method::Gptq { .. } => {
                    let words = &self.codes.row(input / PER_WORD)[panel * PANEL_ROWS..(panel + 1) * PANEL_ROWS];
                    std::array::from_fn(|r| u32::from_le_bytes(words[r]) >> (4 * (input % PER_WORD)))
                }
                Method::Awq => {
                    let word = u32::from_le_bytes(self.codes.row(input)[panel]);
                    std::array::from_fn::<_, PANEL_ROWS, _>(|r| word >> (4 * self.place_of_row(r)))
                }
            };
            codes.iter_mut().zip(words).for_each(|(codes, word)| codes[k] = (word & 15) as i8 - 8);
        }
        codes
    }

    /// Which four bits of a word have row r of eight.
    fn place_of_row(&self, r: usize) -> u32 {
        match self.method {
            Method::Gptq { .. } => r as u32,
            Method::Awq => AWQ_PLACE[r],
        }
    }

    /// The scale of a group and row, if F16 can hold it.
    fn scale(&self, group: usize, row: usize) -> Option<f16> {
        let value = self.stored_scale(group, row);
        Some(f16::from_f32(value)).filter(|scale| value.is_finite() && scale.to_f32() == value)
    }

    fn stored_scale(&self, group: usize, row: usize) -> f32 {
        let (size, rows) = (self.scales.dtype().size(), self.shape[0]);
        self.scales.dtype().decode(&self.scales.bytes()[(group * rows + row) * size..])
    }

    /// Why [`write_panel`](Self::write_panel) found some panel impossible: the first scale that is at fault.
    pub fn fault(&self) -> crate::error::Error {
        let (rows, groups) = (self.shape[0], self.scales.shape()[0]);
        let name = self.scales.name();
        match (0..groups * rows).find(|i| self.scale(i / rows, i % rows).is_none()) {
            Some(i) => {
                let (group, row, value) = (i / rows, i % rows, self.stored_scale(i / rows, i % rows));
                err!(Tensor, "{name}[{group}][{row}]: expected a finite scale that is exact in 16 bits, found {value}")
            }
            None => err!(Internal, "{name}: a scale was found at fault, and is not"),
        }
    }
}

/// Puts the inputs of each group side by side, in ascending order, and fills each group up to groups of a panel: the input at
/// each place, or `None` if that changes nothing, and the group of each group of a panel.
fn arrange(group_of: &[u32], groups: usize) -> Result<(Option<Vec<u32>>, Vec<u32>)> {
    let mut counts = memory::filled(0usize, groups)?;
    group_of.iter().for_each(|&group| counts[group as usize] += 1);
    let (mut panel_groups, mut next) = (Vec::new(), Vec::new());
    for (group, count) in counts.into_iter().enumerate() {
        next.push(panel_groups.len() * GROUP);
        panel_groups.extend(std::iter::repeat_n(group as u32, count.div_ceil(GROUP)));
    }
    let (mut order, places) = (Vec::new(), panel_groups.len() * GROUP);
    order.try_reserve_exact(places)?;
    order.resize(places, GAP);
    for (input, &group) in group_of.iter().enumerate() {
        let place = &mut next[group as usize];
        order[*place] = input as u32;
        *place += 1;
    }
    order.truncate(places - order.iter().rev().take_while(|&&input| input == GAP).count());
    let as_numbered = order.iter().enumerate().all(|(place, &input)| place == input as usize);
    Ok(((!as_numbered).then_some(order), panel_groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_put_side_by_side() {
        let whole: Vec<u32> = (0..80).map(|i| i / 64).collect();
        assert_eq!(arrange(&whole, 2), Ok((None, vec![0, 0, 1])));
        let odd_and_even: Vec<u32> = (0..70).map(|i| i % 2).collect();
        let (order, groups) = arrange(&odd_and_even, 2).unwrap();
        let order = order.unwrap();
        assert_eq!((order.len(), groups), (64 + 35, vec![0, 0, 1, 1]));
        assert_eq!((order[34], order[35], order[63], order[64], order[98]), (68, GAP, GAP, 1, 69));
        // Groups of 16 become groups of 32, half empty; one without inputs takes no place.
        let (order, groups) = arrange(&(0..40).map(|i| if i < 16 { 0 } else { 2 }).collect::<Vec<_>>(), 3).unwrap();
        assert_eq!((order.unwrap().len(), groups), (32 + 24, vec![0, 2]));
    }
}
