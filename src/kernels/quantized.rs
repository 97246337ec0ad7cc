//! The kernels of quantized weights behind checks of every length.

use super::{CodeGroup, Kernels};
use crate::tensor::Quant;
use crate::tensor::quant::{GROUP, PANEL_ROWS};

impl Kernels {
    /// Quantizes a row of activations; `out` has a [`CodeGroup`] for each 32 of `x`, begun ones included.
    pub fn quantize_row(&self, x: &[f32], out: &mut [CodeGroup]) {
        assert_eq!(out.len(), x.len().div_ceil(GROUP), "quantize_row: groups");
        // SAFETY: out has a place for each group of x.
        unsafe { (self.quantize_row)(x.as_ptr(), x.len(), out.as_mut_ptr()) }
    }

    /// Quantizes eight rows of weights, `[8][k]`, to a panel. Returns whether that is possible: the weights must be finite, and
    /// their scales too as F16.
    pub fn quantize_panel(&self, quant: Quant, x: &[f32], panel: &mut [u8]) -> bool {
        let k = x.len() / PANEL_ROWS;
        assert_eq!(x.len(), PANEL_ROWS * k, "quantize_panel: rows");
        assert_eq!(Some(panel.len()), quant.panel_bytes(k), "quantize_panel: panel");
        // SAFETY: checked above.
        unsafe { (self.quantize_panel[quant as usize])(x.as_ptr(), k, panel.as_mut_ptr()) }
    }

    /// `out[t · stride + r] = w[r] · x[t]` for the rows of all `panels` and `n` rows `x` of as many groups.
    pub fn panel_product(
        &self,
        quant: Quant,
        panels: &[u8],
        x: &[CodeGroup],
        n: usize,
        out: &mut [f32],
        stride: usize,
    ) {
        let groups = x.len() / n;
        let bytes = groups * quant.group_bytes();
        let count = panels.len() / bytes;
        assert_eq!((panels.len(), x.len()), (count * bytes, n * groups), "panel_product: lengths");
        assert!(count * PANEL_ROWS <= stride && out.len() >= n * stride, "panel_product: out");
        // One token walks over four far-apart parts of the panels, the rest follows.
        let quarter = if n == 1 { count / 4 } else { 0 };
        let (w, out) = (panels.as_ptr(), out.as_mut_ptr());
        // SAFETY: the parts lie in panels, and panel p writes the columns [8·p, 8·p + 8) of rows of `stride`, checked above.
        unsafe {
            if quarter > 0 {
                let part = |s: usize| s * quarter;
                let w = std::array::from_fn(|s| w.add(part(s) * bytes));
                let out = std::array::from_fn(|s| out.add(part(s) * PANEL_ROWS));
                (self.panel_gemv[quant as usize])(w, quarter, x.as_ptr(), groups, out);
            }
            let done = 4 * quarter;
            let (w, out) = (w.add(done * bytes), out.add(done * PANEL_ROWS));
            (self.panel_gemm[quant as usize])(w, count - done, x.as_ptr(), (n, groups), out, stride);
        }
    }
}
