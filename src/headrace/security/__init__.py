"""security: principals, and the table of the operations and resources that each API is authorized for."""
