"""cli.sql: `headrace sql`."""
