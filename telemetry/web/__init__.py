"""What the pages of all apps share: forms, error sentences, spreadsheets."""
