SELECT
  rules,
  COUNT(*) AS row_count
FROM ledger_rows
GROUP BY
  rules
ORDER BY
  rules NULLS LAST
