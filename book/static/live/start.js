// Finds the places of live figures and fills them when they come near the window.
//
// A place is a box with class `live` and one that names the figure. Its text is what a reader sees
// without JavaScript, in print, and in the notebooks; a still picture may follow it.
(() => {
  const here = document.currentScript.src;

  async function fill(box) {
    const kind = [...box.classList].find((name) => name.startsWith("live-")).slice(5);
    const host = document.createElement("div");
    host.className = "lv-host";
    box.after(host);
    try {
      if (kind === "playground") await (await import(new URL("./playground.js", here))).playground(host);
      else await (await import(new URL("./figure.js", here))).figure(host, kind);
      box.classList.add("lv-replaced");
    } catch (error) {
      host.remove();
      const line = document.createElement("p");
      line.setAttribute("role", "status");
      const again = document.createElement("button");
      again.textContent = "Try again";
      again.onclick = () => location.reload();
      line.append(`The live figure could not be started (${error.message}). `, again);
      box.append(line);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const boxes = document.querySelectorAll(".admonition.live");
    if (location.protocol === "file:") {
      for (const box of boxes) {
        const line = document.createElement("p");
        line.textContent = "It runs when the book comes from a server, as with `make serve`; opened as a file, a browser loads no model.";
        box.append(line);
      }
      return;
    }
    const watcher = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        watcher.unobserve(target);
        fill(target);
      }
    }, { rootMargin: "300px" });
    boxes.forEach((box) => watcher.observe(box));
  });
})();
