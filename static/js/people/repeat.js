// "Repeat…" in the drawer: takes the draft to the form for a series.
const link = document.getElementById("repeat");

link?.addEventListener("click", () => {
  const form = document.getElementById("booking");
  const gpus = [...form.querySelectorAll("#gpu-list input:checked")].map((box) => box.value);
  const field = (name) => form.querySelector(`[name=${name}]`)?.value ?? "";
  const query = new URLSearchParams({
    gpus: gpus.join(","), start: field("start"), end: field("end"), purpose: field("purpose"),
  });
  link.href = `${link.pathname}?${query}`;
});
