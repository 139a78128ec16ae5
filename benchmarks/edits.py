"""Documents that replies quote or rewrite: code, JSON, lists and prose.

A prompt shows a document twice, says that it comes again, and ends with the document's first line:
a model of 135 million parameters that has seen it only once often writes something else.
"""

_DOCUMENTS = {
    "function": '''def moving_average(values, width):
    """Averages of every `width` neighbouring values."""
    if width < 1:
        raise ValueError("width must be at least 1")
    total = sum(values[:width])
    averages = [total / width]
    for old, new in zip(values, values[width:]):
        total += new - old
        averages.append(total / width)
    return averages
''',
    "class": """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance += amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        return self.balance
""",
    "query": """SELECT customers.name, COUNT(orders.id) AS orders, SUM(orders.total) AS total
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.placed_at >= '2024-01-01'
GROUP BY customers.name
HAVING SUM(orders.total) > 1000
ORDER BY total DESC
LIMIT 20;
""",
    "script": """#!/bin/sh
set -eu
backup=/var/backups/site
mkdir -p "$backup"
for folder in /srv/site /etc/site /home/site; do
    name=$(basename "$folder")
    tar -czf "$backup/$name.tar.gz" "$folder"
    echo "saved $folder as $backup/$name.tar.gz"
done
find "$backup" -name '*.tar.gz' -mtime +30 -delete
""",
    "stylesheet": """.card {
  border: 1px solid #d0d0d0;
  border-radius: 8px;
  padding: 16px;
  background: #ffffff;
}
.card h2 {
  margin: 0 0 8px 0;
  font-size: 20px;
  color: #202020;
}
.card p {
  margin: 0;
  color: #404040;
}
""",
    "handler": """app.get("/users/:id", async (request, response) => {
  const user = await users.find(request.params.id);
  if (!user) {
    response.status(404).json({ error: "user not found" });
    return;
  }
  response.json({ id: user.id, name: user.name, email: user.email });
});
""",
    "settings": """{
  "name": "harbour",
  "version": "1.4.2",
  "server": {"host": "127.0.0.1", "port": 8080, "timeout": 30},
  "database": {"host": "127.0.0.1", "port": 5432, "name": "harbour", "pool": 10},
  "logging": {"level": "info", "file": "harbour.log", "rotate": true},
  "features": {"search": true, "export": false, "share": true}
}
""",
    "users": """[
  {"id": 1, "name": "Ada", "city": "London", "active": true},
  {"id": 2, "name": "Grace", "city": "New York", "active": true},
  {"id": 3, "name": "Edsger", "city": "Nuenen", "active": false},
  {"id": 4, "name": "Barbara", "city": "Boston", "active": true},
  {"id": 5, "name": "Donald", "city": "Stanford", "active": true},
  {"id": 6, "name": "Frances", "city": "Croton", "active": false}
]
""",
    "order": """{
  "order": 48213,
  "customer": {"name": "M. Keller", "street": "Gartenweg 4", "town": "Basel"},
  "items": [
    {"sku": "A-100", "title": "Desk lamp", "count": 1, "price": 49.9},
    {"sku": "B-220", "title": "Bulb E27", "count": 3, "price": 4.5},
    {"sku": "C-310", "title": "Extension cord", "count": 1, "price": 12.0}
  ],
  "total": 75.4,
  "paid": true
}
""",
    "schema": """{
  "type": "object",
  "properties": {
    "title": {"type": "string", "minLength": 1},
    "pages": {"type": "integer", "minimum": 1},
    "price": {"type": "number", "minimum": 0},
    "tags": {"type": "array", "items": {"type": "string"}}
  },
  "required": ["title", "pages"]
}
""",
    "weather": """{"station": "Saentis", "readings": [
  {"time": "06:00", "temperature": -4.2, "wind": 31, "snow": true},
  {"time": "09:00", "temperature": -3.1, "wind": 28, "snow": true},
  {"time": "12:00", "temperature": -1.8, "wind": 22, "snow": false},
  {"time": "15:00", "temperature": -2.0, "wind": 25, "snow": false},
  {"time": "18:00", "temperature": -3.6, "wind": 30, "snow": true}
]}
""",
    "shopping list": """- 2 litres of milk
- 500 grams of flour
- a dozen eggs
- 250 grams of butter
- 1 kilogram of apples
- a jar of honey
- 100 grams of walnuts
- a packet of baking powder
- vanilla sugar
- 2 lemons
""",
    "steps": """1. Switch off the power and wait for one minute.
2. Remove the four screws on the back of the case.
3. Lift the cover and put it aside.
4. Pull the cable out of the old drive.
5. Slide the old drive out of its frame.
6. Slide the new drive into the frame.
7. Plug the cable into the new drive.
8. Put the cover back and fasten the four screws.
""",
    "changelog": """## 2.3.0
- Added: search in all open files
- Added: a dark theme
- Changed: settings are saved when they change
- Fixed: the cursor stays where it was after undo
- Fixed: long lines no longer slow down scrolling
- Removed: support for version 1 plug-ins
""",
    "contacts": """Name: Anna Huber, Phone: 044 555 01 12, City: Zurich
Name: Luca Bianchi, Phone: 091 555 07 31, City: Lugano
Name: Claire Martin, Phone: 022 555 09 87, City: Geneva
Name: Reto Caduff, Phone: 081 555 03 45, City: Chur
Name: Sara Meier, Phone: 031 555 06 28, City: Bern
Name: Jan Novak, Phone: 061 555 02 64, City: Basel
""",
    "table": """| planet | radius in km | moons | year in days |
| --- | --- | --- | --- |
| Mercury | 2440 | 0 | 88 |
| Venus | 6052 | 0 | 225 |
| Earth | 6371 | 1 | 365 |
| Mars | 3390 | 2 | 687 |
| Jupiter | 69911 | 95 | 4333 |
| Saturn | 58232 | 146 | 10759 |
""",
    "headers": """Host: api.example.org
Accept: application/json
Accept-Language: en, de;q=0.8
Content-Type: application/json; charset=utf-8
Content-Length: 348
Cache-Control: no-cache
X-Request-Id: 7f1c2a90
Connection: keep-alive
""",
    "notice": """\
The library will be closed from Monday to Wednesday while the reading room is painted. Books
that are due on these days may be brought back on Thursday without a fee. The machine at the
entrance takes returns at any hour. We thank all readers for their patience and look forward to
seeing them again in a brighter room.
""",
    "letter": """Dear Mr. Baumann,
thank you for your order of the third of May. Two of the three chairs left our workshop this
morning and will reach you on Friday. The third chair needs another week, because the fabric that
you chose is woven to order. We will write to you as soon as it is ready.
With kind regards,
""",
    "report": """\
The bridge was inspected on the ninth of June. The northern pier shows cracks of up to two
millimetres below the waterline. The southern pier shows no damage. The bearings on both sides
are dry and need grease. We recommend to close the cracks before winter and to inspect the
northern pier again in March.
""",
    "recipe": """\
Peel the potatoes and cut them into thin slices. Rub the dish with garlic and butter. Lay the
slices in the dish, pour the cream over them, and season with salt, pepper and nutmeg. Cover
the dish with grated cheese. Bake it for fifty minutes at one hundred and eighty degrees, until
the top is brown and crisp.
""",
    "story": """\
The old ferryman knew every stone of the river. In spring he steered by the willows, in summer
by the white house on the hill, and in autumn, when fog lay on the water, by the sound of the
bells. Nobody had ever seen him lose his way, and nobody had ever seen him hurry.
""",
}

PROMPTS = {
    name: f"Here is a {name}:\n\n{text}\nHere is the same {name} once more:\n\n{text}\n"
    f"Here is the same {name} once more:\n\n" + text.partition("\n")[0] + "\n"
    for name, text in _DOCUMENTS.items()
}
"""By the document's name. The reply is worth as many tokens as the rest of the document has."""

REPLIES = {name: text.partition("\n")[2] for name, text in _DOCUMENTS.items()}
"""What a reply that copies would be."""

PROSE = (
    "Once upon a time there was a lighthouse keeper who",
    "The history of the city began when",
    "My grandmother used to say that the sea",
    "Scientists have recently discovered that",
    "On the first morning of the journey we",
)
"""Beginnings with nothing to copy."""
