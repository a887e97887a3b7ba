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

  async function draw(view) {
    if (view.dataset.state) return;
    view.dataset.state = "loading";
    const target = view.querySelector(".cv-target");
    target.id ||= `cv-target-${++count}`;
    try {
      const { component, props } = JSON.parse(view.querySelector("script").textContent);
      const library = await loadBundle();
      library.render(target.id, library[component], props);
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
