SELECT group_columns, bucket, label,
  SUM(CAST(ns AS DECIMAL(38, 0))) AS job_ns,
  COALESCE(SUM(CAST(chip_ns AS DECIMAL(38, 0))), 0) AS chip_ns,
  COALESCE(SUM(CAST(cost AS DECIMAL(38, 0))), 0) AS cost
FROM facts
WHERE bucket NOT IN ('', 'PRODUCTIVE', 'EXCLUDED')
GROUP BY group_columns, bucket, label
ORDER BY group_columns, bucket, label
