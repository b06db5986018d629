"""What a captured profile says: steps, busy and idle, operations, input; read with XProf's own converters."""
