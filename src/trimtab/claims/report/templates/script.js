"use strict";
for (const button of document.querySelectorAll("button[data-sort]")) {
  button.addEventListener("click", () => {
    const key = button.dataset.sort, head = button.closest("th"), table = button.closest("table");
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (body) => body.dataset[key];
    const rows = [...table.tBodies].sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === "" || y === "") return (x === "") - (y === ""); // what is not there comes last, both ways
      const order = key === "method" ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    });
    for (const body of rows) table.append(body);
  });
}
const record = document.getElementById("record"), save = document.querySelector("button.save");
if (record && save) {
  save.hidden = false;
  save.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([record.textContent], { type: "application/json" }));
    link.download = save.dataset.file;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
