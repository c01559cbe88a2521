"""`paceline verify`: the same settings at several world sizes and after a kill, compared step by step."""
