// While an export is made: how far it is, asked for every second, until there is a file or a reason why not.
(() => {
  const box = document.getElementById("far"), button = document.querySelector("main form button");
  async function ask() {
    if (box.dataset.running !== "yes") { button.disabled = false; return; }
    try {
      const response = await fetch(location.href, { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("far");
      box.replaceChildren(...fresh.childNodes);
      box.dataset.running = fresh.dataset.running;
    } catch { /* asked again */ }
    setTimeout(ask, 1000);
  }
  setTimeout(ask, box.dataset.running === "yes" ? 300 : 0);
})();
