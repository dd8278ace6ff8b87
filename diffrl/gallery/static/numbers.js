// Numbers as diffrl/gallery/numbers.py writes and judges them.
const numbers = {
  same: 1e-6,
  // Of two equally near numbers Python takes the even one, toFixed the larger.
  three(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value), minus = value < 0 || Object.is(value, -0) ? "-" : "";
    const digits = size >= 1000 ? 0 : size < 100 ? 3 : 1;
    const half = (size * 2 ** (digits + 1)) % 2 === 1; // exactly between two numbers of so many digits
    let text = size >= 1e21 ? String(BigInt(size)) : size.toFixed(digits);
    if (half && Number(text.at(-1)) % 2) text = (Number(text) - 10 ** -digits).toFixed(digits);
    return minus + (digits ? text : text.replace(/\B(?=(\d{3})+$)/g, ","));
  },
  signed(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size <= numbers.same) return "±0.000";
    const small = size < 0.001 ? [3, 4, 5, 6].map((digits) => size.toFixed(digits)).find(Number) : undefined;
    return (value > 0 ? "+" : "−") + (small ?? numbers.three(size));
  },
  // Of some rewards less is better.
  improvement: (change, lower) => (lower ? -change : change),
  sign: (change, lower) => (change === null || Math.abs(change) <= numbers.same ? "" : numbers.improvement(change, lower) > 0 ? "gain" : "loss"),
  change: (value, other) => (typeof value !== "number" || typeof other !== "number" ? null : value - other),
};
