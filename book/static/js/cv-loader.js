// Draws the CircuitsVis figures of a page. The bundle (1.3 MB) is loaded once, and only when
// the first figure comes near the window or the page is printed.
(() => {
  const here = document.currentScript.src;
  let bundle;
  let count = 0;

  function loadBundle() {
    bundle ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("../vendor/circuitsvis.js", here).href;
      script.onload = () => resolve(CircuitsVis);
      script.onerror = () => reject(new Error("the figure script could not be loaded"));
      document.head.append(script);
    });
    return bundle;
  }

  // The pictures are canvases without names, chosen with the mouse alone: say what they are,
  // and make the small ones buttons that the keyboard reaches too.
  function nameParts(target) {
    for (const heading of target.querySelectorAll("h1, h2, h3, h4")) heading.role = "presentation";
    for (const heading of target.querySelectorAll("h4")) {
      const box = heading.parentElement;
      const canvas = box.querySelector("canvas");
      if (!canvas || box.tabIndex === 0) continue;
      canvas.role = "presentation";
      box.tabIndex = 0;
      box.role = "button";
      box.ariaLabel = `${heading.textContent}: show this head's attention pattern`;
      box.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        box.click();
      });
    }
    const shown = target.querySelector("h2");
    const large = [...target.querySelectorAll("canvas[role=img]")].at(-1);
    if (large) {
      large.ariaLabel =
        `Attention pattern of head ${shown?.textContent ?? ""}: ` +
        "destination tokens run down, source tokens across, darker is more attention";
    }
  }

  async function draw(view) {
    if (view.dataset.state) return;
    view.dataset.state = "loading";
    const target = view.querySelector(".cv-target");
    target.id ||= `cv-target-${++count}`;
    try {
      const { component, props } = JSON.parse(view.querySelector("script").textContent);
      const library = await loadBundle();
      library.render(target.id, library[component], props);
      const changes = { childList: true, characterData: true, subtree: true };
      new MutationObserver(() => nameParts(target)).observe(target, changes);
      await new Promise((resolve) => {
        const wait = () => (target.querySelector("canvas") ? resolve() : requestAnimationFrame(wait));
        wait();
      });
      nameParts(target);
      view.dataset.state = "drawn";
    } catch (error) {
      target.textContent = `This figure could not be drawn: ${error.message}.`;
      view.dataset.state = "failed";
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const views = document.querySelectorAll(".cv-view");
    const watcher = new IntersectionObserver(
      (entries) => entries.filter((e) => e.isIntersecting).forEach((e) => draw(e.target)),
      { rootMargin: "300px" },
    );
    views.forEach((view) => watcher.observe(view));
    addEventListener("beforeprint", () => views.forEach(draw));
  });
})();
