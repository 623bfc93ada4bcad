// One box ticks all boxes of its name on the page, and shows if all are ticked.
for (const all of document.querySelectorAll("input[data-all]")) {
  const boxes = [...document.querySelectorAll(`input[name="${all.dataset.all}"]`)];
  const follow = () => {
    const on = boxes.filter((box) => box.checked).length;
    all.checked = on > 0 && on === boxes.length;
    all.indeterminate = on > 0 && on < boxes.length;
  };
  all.addEventListener("change", () => {
    for (const box of boxes) box.checked = all.checked;
    follow();
  });
  for (const box of boxes) box.addEventListener("change", follow);
  follow();
}
