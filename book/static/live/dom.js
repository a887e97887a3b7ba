// Elements, made from plain descriptions; all text goes in as text, never as HTML.

/** h("button", { class: "x", onclick: f, "aria-label": "y" }, "text", child, ...) */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && !key.includes("-") && typeof value !== "string") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Exactly `count` children of `parent`, the old ones kept, each brought up to date by `update`. */
export function children(parent, count, make, update) {
  while (parent.children.length > count) parent.lastElementChild.remove();
  while (parent.children.length < count) parent.append(make(parent.children.length));
  for (let i = 0; i < count; i++) update(parent.children[i], i);
}

/** Sets an attribute or text only where it differs, so that a screen reader hears changes alone. */
export function put(element, values) {
  for (const [key, value] of Object.entries(values)) {
    if (key === "text") {
      if (element.textContent !== value) element.textContent = value;
    } else if (value === null || value === false) element.removeAttribute(key);
    else if (element.getAttribute(key) !== String(value)) element.setAttribute(key, value);
  }
}

/** A labelled choice. options: [[value, label], ...] */
export function choice(label, options, onchange, properties = {}) {
  const select = h("select", { onchange: () => onchange(select.value), ...properties },
    options.map(([value, name]) => h("option", { value }, name)));
  return Object.assign(h("label", { class: "lv-field" }, h("span", {}, label), select), { select });
}

/** A row of radio buttons that looks like one switch. options: [[value, label], ...] */
export function radios(legend, name, options, onchange) {
  const inputs = options.map(([value]) => h("input", { type: "radio", name, value, onchange: () => onchange(value) }));
  const set = h("fieldset", { class: "lv-radios" }, h("legend", {}, legend),
    h("div", {}, options.map(([, label], i) => h("label", {}, inputs[i], h("span", {}, label)))));
  set.show = (value) => inputs.forEach((input) => (input.checked = input.value === String(value)));
  return set;
}

export const later = (delay, act) => {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...args), delay);
  };
};

export const fixed = (x, digits = 2) => x.toFixed(digits).replace("-", "−");
export const signed = (x, digits = 2) => (x < 0 ? "" : "+") + fixed(x, digits);
