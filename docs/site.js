/* Who has no mouse scrolls a wide table or a wide line of code by the arrows; and every bar of a
   block of code has a name of its own. */
document$.subscribe(() => {
  for (const formula of document.querySelectorAll(".arithmatex, .jp-RenderedMarkdown p"))
    if (formula.matches(".arithmatex") || formula.textContent.startsWith("$$"))
      katex.render(formula.textContent.slice(2, -2), formula, {displayMode: formula.tagName !== "SPAN"});
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .katex-display, .highlight-ipynb, .jp-OutputArea-output pre"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  document.querySelectorAll(".md-code__nav").forEach((bar, number) => bar.setAttribute("aria-label", `Code ${number + 1}`));
});
