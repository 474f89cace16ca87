// The one way in: a page or the server's page mounts the studio by itself, a notebook calls
// `render` (the front end of an anywidget).

import { mount, unmount } from "svelte";
import App from "./App.svelte";
import { doorTo } from "./live/door";
import { liveSource } from "./live/source";
import { packedSource, servedSource, type Pack, type Source } from "./source";
import { Studio } from "./studio.svelte";
import "./style.css";
import { VIEWS } from "./views";
import { isGuided } from "./views/guide";

const names = VIEWS.map(({ name }) => name);

/** The source of an exported page, with a model or without. */
const sourceOf = (pack: Pack): Source => (pack.model ? liveSource(pack) : packedSource(pack));

const place = document.getElementById("headloom-studio");
if (place) {
  const data = document.getElementById("headloom-data");
  const source = data
    ? sourceOf(JSON.parse(data.textContent ?? "{}"))
    : servedSource(new URL("api/", document.baseURI).href);
  if (source.model) {
    Object.assign(window, { headloom: doorTo(source.model) });
    if (isGuided(source.model.card) && !/[#&]view=/.test(location.hash))
      history.replaceState(null, "", `#view=guide&${location.hash.slice(1)}`);
  }
  place.classList.add("headloom-whole");
  place.replaceChildren();
  mount(App, { target: place, props: { studio: new Studio(source, true, location.hash, names) } });
}

interface Model {
  get(name: string): unknown;
}

export default {
  render({ model, el }: { model: Model; el: HTMLElement }) {
    const source = packedSource(JSON.parse(model.get("pack") as string) as Pack);
    const studio = new Studio(source, false, String(model.get("start") ?? ""), names);
    el.classList.add("headloom-cell");
    // JupyterLab's own keys (m, d d, x) are not for a studio that has the focus.
    el.dataset.lmSuppressShortcuts = "true";
    const app = mount(App, { target: el, props: { studio } });
    return () => void unmount(app);
  },
};
