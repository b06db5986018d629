// Sorts a table by the column of which the header is pressed: first numbers from the largest, and texts from A.
"use strict";
document.addEventListener("click", (event) => {
  const header = event.target.closest(".fleet .sort")?.closest("th");
  if (!header) return;
  const table = header.closest("table");
  const column = header.cellIndex;
  const rows = [...table.tBodies[0].rows];
  const isNumber = rows.some((row) => row.cells[column].dataset.key !== undefined);
  const before = header.getAttribute("aria-sort");
  const isAscending = before ? before === "descending" : !isNumber;
  const value = (row) => (isNumber ? Number(row.cells[column].dataset.key) : row.cells[column].textContent);
  const compare = (one, other) => (isNumber ? one - other : one.localeCompare(other, "en", { numeric: true }));
  rows.sort((one, other) => compare(value(one), value(other)) * (isAscending ? 1 : -1));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
  table.tBodies[0].append(...rows);
});
