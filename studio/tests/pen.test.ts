import { expect, test } from "vitest";
import { element, escaped, SvgPen } from "../src/figure/pen";

test("what is painted stands in the figure, moved and turned", () => {
  const pen = new SvgPen();
  pen.save();
  pen.translate(10, 20);
  pen.rotate(Math.PI / 2);
  pen.globalAlpha = 0.5;
  pen.strokeStyle = "red";
  pen.beginPath();
  pen.moveTo(0, 0);
  pen.lineTo(3, 0);
  pen.stroke();
  pen.restore();
  pen.fillRect(1, 2, 3, 4);
  expect(pen.svg).toBe(
    '<path d="M10 20L10 23" fill="none" stroke="red" stroke-width="1" stroke-opacity="0.500"/>' +
      '<path d="M1 2L4 2L4 6L1 6Z" fill="#000000"/>',
  );
});

test("what is cut off stays so until the pen is put back", () => {
  const pen = new SvgPen();
  pen.save();
  pen.beginPath();
  pen.rect(0, 0, 2, 2);
  pen.clip();
  pen.fillRect(0, 0, 9, 9);
  pen.restore();
  pen.fillRect(5, 5, 1, 1);
  expect(pen.svg).toMatch(
    /^<clipPath id="(\S+)">.*<g clip-path="url\(#\1\)">.*<\/g><path[^>]*M5 5/,
  );
});

test("texts are escaped, and what XML cannot hold is replaced", () => {
  expect(escaped("<b>&\u0000\ud800")).toBe("&lt;b&gt;&amp;\ufffd\ufffd");
  expect(element("rect", { x: 1.2345, rx: undefined })).toBe('<rect x="1.23"/>');
});
