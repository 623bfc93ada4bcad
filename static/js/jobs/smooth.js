// Smoothing of a curve: the exponential moving average with bias correction of Adam
// (Kingma and Ba, 2015, algorithm 1), as TensorBoard smooths its curves:
//   m_t = w m_(t-1) + (1 - w) x_t,   y_t = m_t / (1 - w^t)

/** The smoothed values. weight: from 0 (unchanged) to below 1. Holes stay holes. */
export function smoothed(values, weight) {
  let mean = 0;
  let left = 1;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    left *= weight;
    return mean / (1 - left);
  });
}

/** A logarithmic axis cannot show zero and negative values. */
export const positive = (values) => values.map((value) => (value > 0 ? value : null));
