// The head atlas: a search box, sortable columns, and a readout of the cells of patterns.
(() => {
  if (window.pathsumAtlas) return;
  window.pathsumAtlas = true;

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // "·the" and " the" mean the token with its space; other words are matched one by one.
  const words = (query) => query.toLowerCase().replace(/^ +(?=\S)/, "·").trim().split(/\s+/).filter(Boolean);

  function search(box) {
    const wanted = words(box.querySelector("input").value);
    const heads = all("[data-head]");
    let shown = 0;
    for (const head of heads) {
      const text = `${head.dataset.head} ${head.textContent} ${head.dataset.words ?? ""}`.toLowerCase();
      const hit = wanted.every((word) => text.includes(word));
      shown += hit;
      const whole = head.tagName === "TR" ? head : head.closest("section") ?? head;
      whole.hidden = !hit;
      for (const code of all("code", head)) {
        const token = code.textContent.toLowerCase();
        code.classList.toggle("atlas-hit", wanted.some((word) => token.includes(word)));
      }
    }
    box.querySelector("p").textContent = wanted.length ? `${shown} of ${heads.length} heads` : "";
    const find = wanted.length ? `?find=${encodeURIComponent(wanted.join(" "))}` : "";
    for (const link of all("tr[data-head] a")) link.search = find;
  }

  // Cells of a pattern: two digits each, the rows of a triangle one after the other.
  function read(svg, row, column) {
    const tokens = all(".rows text", svg).map((text) => text.textContent);
    const place = (row * (row + 1)) / 2 + column;
    const value = (Number(svg.dataset.v.slice(2 * place, 2 * place + 2)) / 99) * Number(svg.dataset.top);
    const line = svg.closest("figure").querySelector(".atlas-read");
    line.textContent = `at ${tokens[row]} (${row}), from ${tokens[column]} (${column}): ${value.toFixed(2)}`;
    let cross = svg.querySelector(".cross");
    if (!cross) {
      cross = document.createElementNS(svg.namespaceURI, "rect");
      cross.setAttribute("class", "cross");
      svg.append(cross);
    }
    const image = svg.querySelector("image");
    const size = Number(image.getAttribute("width")) / tokens.length;
    for (const [name, at] of [["x", Number(image.getAttribute("x")) + column * size], ["y", row * size], ["width", size], ["height", size]])
      cross.setAttribute(name, at);
    svg.at = [row, column];
  }

  document.addEventListener("pointermove", (event) => {
    if (event.target.tagName !== "image") return;
    const svg = event.target.closest("svg.atlas-pattern");
    if (!svg) return;
    const box = event.target.getBoundingClientRect();
    const n = all(".rows text", svg).length;
    const cell = (at, from, size) => Math.min(n - 1, Math.max(0, Math.floor(((at - from) / size) * n)));
    const row = cell(event.clientY, box.top, box.height);
    const column = cell(event.clientX, box.left, box.width);
    if (column <= row) read(svg, row, column);
  });

  document.addEventListener("keydown", (event) => {
    const svg = event.target.closest?.("svg.atlas-pattern");
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!svg || !moves[event.key]) return;
    event.preventDefault();
    const last = all(".rows text", svg).length - 1;
    const [down, across] = moves[event.key];
    const [row, column] = svg.at ?? [last, 0];
    const next = Math.min(last, Math.max(0, row + down));
    read(svg, next, Math.min(next, Math.max(0, column + across)));
  });

  function sortable(table) {
    all("thead th", table).forEach((cell, column) => {
      if (column === 3) return; // a bar has no order
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") !== "descending";
        for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
        const rows = all("tbody tr", table);
        const numbers = rows[0].cells[column].dataset.v !== undefined;
        rows.sort((a, b) => numbers ? value(a) - value(b)
          : value(a).localeCompare(value(b), "en", { numeric: true }));
        table.tBodies[0].append(...(down ? rows.reverse() : rows));
      });
    });
  }

  function start() {
    for (const box of all(".atlas-search")) {
      box.hidden = false;
      const part = box.closest("section");
      const first = part?.querySelector(":scope > section");
      if (first) part.insertBefore(box, first); // where it can stay in view all down the page
      const input = box.querySelector("input");
      input.addEventListener("input", () => search(box));
      input.addEventListener("keydown", (event) => {
        if (event.key === "Escape") { input.value = ""; search(box); }
      });
      input.value = new URLSearchParams(location.search).get("find") ?? "";
      if (input.value) search(box);
    }
    all("table.atlas-overview").forEach(sortable);
    all("svg.atlas-pattern").forEach((svg) => svg.setAttribute("tabindex", "0"));
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
