// Sorts a table by the column of which the header is pressed: first numbers from the largest, and texts from A.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.querySelector(".sort").addEventListener("click", () => {
      const rows = [...table.tBodies[0].rows];
      const isNumber = rows.some((row) => row.cells[column].dataset.key !== undefined);
      const before = header.getAttribute("aria-sort");
      const isAscending = before ? before === "descending" : !isNumber;
      const value = (row) => (isNumber ? Number(row.cells[column].dataset.key) : row.cells[column].textContent);
      const compare = (one, other) => (isNumber ? one - other : one.localeCompare(other, "en", { numeric: true }));
      rows.sort((one, other) => compare(value(one), value(other)) * (isAscending ? 1 : -1));
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", isAscending ? "ascending" : "descending");
      table.tBodies[0].append(...rows);
    });
  });
}
