// Made by manage.py compilemessages: do not edit.
globalThis.catalogue = {
plural: (n) => Number((n != 1)),
words: {},
};
