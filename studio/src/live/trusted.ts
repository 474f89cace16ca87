// Addresses of scripts that a page with a model runs: its worker, and the parts of its folder.

interface Policy {
  createScriptURL(url: string): string;
}
interface Policies {
  createPolicy(name: string, rules: { createScriptURL: (url: string) => string }): Policy;
}

const POLICIES = (globalThis as { trustedTypes?: Policies }).trustedTypes;
let policy: Policy | undefined;

/** An address of the page's own, as the page's policy allows it. */
export function trustedUrl(url: string): string {
  if (!/^(blob:|parts\/\d+\.js$)/.test(url)) throw new Error(`${url} is not part of this page.`);
  policy ??= POLICIES?.createPolicy("headloom", { createScriptURL: (own) => own });
  return policy?.createScriptURL(url) ?? url;
}
