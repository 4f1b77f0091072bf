// Keeps the totals fresh without loading the page anew.
const cells = document.querySelectorAll("[data-stat]");
setInterval(async () => {
  try {
    const stats = await (await fetch("/api/stats")).json();
    for (const cell of cells) cell.textContent = Math.round(stats[cell.dataset.stat]).toLocaleString("en");
  } catch {
    // The catcher is gone, or restarts; the next tick tries again.
  }
}, 1000);
