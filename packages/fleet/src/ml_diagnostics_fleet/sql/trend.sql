WITH recent AS (
  SELECT group_columns, bucket, label, ns, chip_ns, cost,
    CASE WHEN as_of_ns - day_ns <= 604800000000000 THEN 'now' ELSE 'before' END AS period
  FROM facts
  WHERE as_of_ns - day_ns <= 1209600000000000 AND bucket NOT IN ('', 'EXCLUDED')
)
SELECT group_columns, period, bucket, label,
  SUM(CAST(ns AS DECIMAL(38, 0))) AS job_ns,
  COALESCE(SUM(CAST(chip_ns AS DECIMAL(38, 0))), 0) AS chip_ns,
  COALESCE(SUM(CAST(cost AS DECIMAL(38, 0))), 0) AS cost
FROM recent
GROUP BY group_columns, period, bucket, label
ORDER BY group_columns, period, bucket, label
