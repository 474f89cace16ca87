import { expect, test } from "vitest";
import { normChange, productRamp, type Training } from "../src/training";

test("what became of a norm", () => {
  expect(normChange(2, 2)).toBe("kept its norm");
  expect(normChange(2, 2.001)).toBe("kept its norm");
  expect(normChange(2, 5)).toBe("grown to 2.50 times its initial norm");
  expect(normChange(2, 1)).toBe("shrunk to 0.500 times its initial norm");
  expect(normChange(0, 1.5)).toBe("grown from 0 to a norm of 1.50");
  expect(normChange(0, 0)).toBe("stayed 0");
});

test("the ends of the colours of W_Q W_K^T say where entries are beyond them", () => {
  const ends = (product_beyond: boolean) => {
    const layers = [{ product_scale: 0.318, product_beyond }];
    const { ticks } = productRamp({ description: { layers } } as unknown as Training, 0);
    return [ticks[0][1], ticks[4][1]];
  };
  expect(ends(true)).toEqual(["≤ −0.318", "≥ +0.318"]);
  expect(ends(false)).toEqual(["−0.318", "+0.318"]);
});
